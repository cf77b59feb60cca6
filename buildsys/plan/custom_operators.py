"""Custom operators in the plan: their files and their use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from buildsys.manifest.operator_choice import chosen_kind, implementations
from buildsys.plan.action import FileRef

MAIN = "onnxruntime"  # validation runs its implementations; the exported file has its functions
# how a backend implements one operator, unless it uses the graph's own function
Entry = dict[str, Any]
Library = Mapping[str, Any]  # ``sources`` and ``flags``, or ``file`` and ``symbol``


class OperatorUse(NamedTuple):
    """Additions to an action for custom operators; empty without any."""

    options: Mapping[str, Any] = {}
    inputs: Mapping[str, FileRef] = {}
    sources: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        """Libraries to edit the graph and to run Python plugins."""
        return (*(("onnx",) if self.options else ()), *self.plugin_tools)

    @property
    def plugin_tools(self) -> tuple[str, ...]:
        """Python, for Python plugins; their own imports are found in their files."""
        return ("python",) if self.sources else ()


NO_OPERATORS = OperatorUse()


class CustomOperators:
    """The custom operators of one model."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.target = f"operators:{spec['model']}"
        self._model = spec["model"]
        self._declared = spec["ops"]
        self._backends = dict.fromkeys((MAIN, *(engine["backend"] for engine in spec["engines"])))
        self._uses: dict[str, OperatorUse] = {}

    @cached_property
    def functions(self) -> dict[str, dict[str, str]]:
        """Operator -> ``FILE.py:NAME``, by role of the output file.

        ``functions`` are in the graph itself, ``functions.BACKEND`` replace some of them.
        """
        chosen = {
            backend: {
                entry["op"]: implementations(entry, backend)["function"]
                for entry in self._declared
                if chosen_kind(entry, backend) == "function"
            }
            for backend in self._backends
        }
        shared: dict[str, str] = {}
        for entry in self._declared:
            found = (own[entry["op"]] for own in chosen.values() if entry["op"] in own)
            if function := next(found, None):
                shared[entry["op"]] = function
        roles = {"functions": shared}
        for backend, own in chosen.items():
            roles[f"functions.{backend}"] = {
                op: function for op, function in own.items() if function != shared[op]
            }
        return {role: functions for role, functions in roles.items() if functions}

    @cached_property
    def libraries(self) -> dict[str, Library]:
        """Shared libraries by name, each once for all operators and backends."""
        named: dict[str, Library] = {}
        for entry in self._declared:
            for backend in self._backends:
                library = _library(entry, backend)
                if library is not None and library not in named.values():
                    files = library["sources"] if "sources" in library else [library["file"]]
                    stem, number = PurePosixPath(files[0]).stem, 1
                    while (name := stem if number == 1 else f"{stem}-{number}") in named:
                        number += 1
                    named[name] = library
        return named

    @property
    def graph_functions(self) -> dict[str, FileRef]:
        """File of the functions in the exported graph, by role."""
        return {"functions": self.file("functions")} if "functions" in self.functions else {}

    def file(self, role: str) -> FileRef:
        """Return a library or a file of functions of the operators stage."""
        kind, _, name = role.partition(".")
        file = f"{name}.so" if kind == "library" else f"{role}.onnx"
        return FileRef(f"{self._model}/operators/{file}")

    def use(self, backend: str = MAIN) -> OperatorUse:
        """Return the additions to an action reading the graph for ``backend``."""
        if not self._declared:
            return NO_OPERATORS
        if backend not in self._uses:
            entries = self._entries(backend)
            roles = [_role(entry) for entry in entries if "library" in entry]
            inputs = {role: self.file(role) for role in roles}
            if any(entry["kind"] == "function" for entry in entries):
                inputs["functions"] = self.file(f"functions.{backend}")
            after = (self.target,) if inputs else ()
            use = OperatorUse({"operators": entries}, inputs, _python_files(entries), after)
            self._uses[backend] = use if entries else NO_OPERATORS
        return self._uses[backend]

    def loaded_use(self, engine: Mapping[str, Any]) -> OperatorUse:
        """Return the additions to an action running an engine."""
        found = self._entries(engine["backend"])
        entries = [entry for entry in found if entry["kind"] in ("library", "plugin")]
        if not entries:
            return NO_OPERATORS
        libraries = self.copied_libraries(engine)
        return OperatorUse({"operators": entries}, libraries, _python_files(entries))

    def copied_libraries(self, engine: Mapping[str, Any]) -> dict[str, FileRef]:
        """Return the libraries copied into an engine's folder, by role."""
        folder = f"{self._model}/engine/{engine['name']}"
        return {
            _role(entry): FileRef(f"{folder}/{entry['library']}.so", optional=True)
            for entry in self._entries(engine["backend"])
            if "library" in entry
        }

    def _entries(self, backend: str) -> list[Entry]:
        """Return the implementation of each operator, except functions of the graph itself.

        ``kind`` is ``library``, ``plugin``, ``function`` (not the graph's) or None for no
        implementation.
        """
        entries: list[Entry] = []
        for declared in self._declared:
            op, kind = declared["op"], chosen_kind(declared, backend)
            library = _library(declared, backend)
            if library is not None:
                name = next(name for name, known in self.libraries.items() if known == library)
                entries.append({"op": op, "kind": kind, "library": name})
            elif kind == "plugin":
                entries.append({"op": op, "kind": kind, "python": declared["plugin"]["python"]})
            elif kind is None or op in self.functions.get(f"functions.{backend}", ()):
                entries.append({"op": op, "kind": kind})
        return entries


def _library(entry: Mapping[str, Any], backend: str) -> Library | None:
    kind = chosen_kind(entry, backend)
    if kind == "library":
        library: Library = entry["library"]
        return {**library, "symbol": "RegisterCustomOps"} if "file" in library else library
    if kind == "plugin" and "library" in entry["plugin"]:
        return {"file": entry["plugin"]["library"], "symbol": ""}
    return None


def _role(entry: Entry) -> str:
    return f"library.{entry['library']}"


def _python_files(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry["python"] for entry in entries if "python" in entry))
