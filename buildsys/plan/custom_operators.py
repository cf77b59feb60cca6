"""Custom operators in the plan: their files and their use."""

from collections.abc import Mapping
from itertools import product
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from buildsys.manifest.backend_choices import chosen_kind, implementations
from buildsys.plan.action import FileRef
from buildsys.stages.table import OPERATORS, target_of

MAIN = "onnxruntime"  # validation runs its implementations; the exported file has its functions
# how a backend implements one operator, unless it uses the graph's own function
Entry = dict[str, Any]
Library = Mapping[str, Any]  # ``sources`` and ``flags``, or ``file``


class PlannedOperator(NamedTuple):
    """Additions to an action for custom operators; empty without any."""

    options: Mapping[str, Any] = {}
    inputs: Mapping[str, FileRef] = {}
    sources: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        """Libraries to edit the graph, and Python for Python plugins.

        The plugins' own imports are found in their files.
        """
        return (*(("onnx",) if self.options else ()), *(("python",) if self.sources else ()))


NO_OPERATORS = PlannedOperator()


class CustomOperators:
    """The custom operators of one model."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self.target = target_of(OPERATORS, spec["model"])
        self._model = spec["model"]
        self._declared = spec["ops"]
        backends = dict.fromkeys((MAIN, *(engine["backend"] for engine in spec["engines"])))
        shared: dict[str, str] = {}
        roles = {"functions": shared}
        for backend, entry in product(backends, self._declared):
            if chosen_kind(entry, backend) == "function":
                function, op = implementations(entry, backend)["function"], entry["op"]
                if shared.setdefault(op, function) != function:
                    roles.setdefault(f"functions.{backend}", {})[op] = function
        # operator -> ``FILE.py:NAME``, by role of the output file: ``functions`` are in the graph
        # itself, ``functions.BACKEND`` replace some of them
        self.functions = {role: functions for role, functions in roles.items() if functions}
        exported = {"functions": self.file("functions")}  # with the exported graph
        self.graph_functions = exported if "functions" in self.functions else {}
        # shared libraries by name, each once for all operators and backends
        self.libraries: dict[str, Library] = {}
        for entry, backend in product(self._declared, backends):
            library = _library(entry, backend)
            if library is not None and library not in self.libraries.values():
                files = library["sources"] if "sources" in library else [library["file"]]
                stem, number = PurePosixPath(files[0]).stem, 1
                while (name := stem if number == 1 else f"{stem}-{number}") in self.libraries:
                    number += 1
                self.libraries[name] = library

    def file(self, role: str) -> FileRef:
        """Locate a library or a file of functions of the operators stage."""
        kind, _, name = role.partition(".")
        file = f"{name}.so" if kind == "library" else f"{role}.onnx"
        return FileRef(f"{self._model}/operators/{file}")

    def use(self, backend: str = MAIN) -> PlannedOperator:
        """List the additions to an action that reads the graph for ``backend``."""
        entries = self._entries(backend)
        libraries = [f"library.{entry['library']}" for entry in entries if "library" in entry]
        inputs = {role: self.file(role) for role in libraries}
        if any(entry["kind"] == "function" for entry in entries):
            inputs["functions"] = self.file(f"functions.{backend}")
        return _use(entries, inputs, (self.target,) if inputs else ())

    def loaded_use(self, engine: Mapping[str, Any]) -> PlannedOperator:
        """List the additions for running an engine: copies of its libraries."""
        entries = [
            entry
            for entry in self._entries(engine["backend"])
            if entry["kind"] in ("library", "plugin")
        ]
        folder = f"{self._model}/engine/{engine['name']}"
        names = [entry["library"] for entry in entries if "library" in entry]
        copies = {f"library.{n}": FileRef(f"{folder}/{n}.so", optional=True) for n in names}
        return _use(entries, copies)

    def _entries(self, backend: str) -> list[Entry]:
        """List the implementation of each operator, except functions of the graph itself.

        ``kind`` is ``library``, ``plugin``, ``function`` (not the graph's) or None for no
        implementation.
        """
        entries: list[Entry] = []
        for declared in self._declared:
            op, kind = declared["op"], chosen_kind(declared, backend)
            library = _library(declared, backend)
            if library is not None:
                name = next(name for name, other in self.libraries.items() if other == library)
                entries.append({"op": op, "kind": kind, "library": name})
            elif kind == "plugin":
                plugin = declared["plugin"]
                file = {} if "bundled" in plugin else {"python": plugin["python"]}
                entries.append({"op": op, "kind": kind, **file})
            elif kind is None or op in self.functions.get(f"functions.{backend}", ()):
                entries.append({"op": op, "kind": kind})
        return entries


def _library(entry: Mapping[str, Any], backend: str) -> Library | None:
    kind = chosen_kind(entry, backend)
    if kind == "library":
        library: Library = entry["library"]
        return library
    if kind == "plugin" and "library" in entry["plugin"]:
        return {"file": entry["plugin"]["library"]}
    return None


def _use(
    entries: list[Entry], inputs: Mapping[str, FileRef], after: tuple[str, ...] = ()
) -> PlannedOperator:
    sources = tuple(dict.fromkeys(entry["python"] for entry in entries if "python" in entry))
    return PlannedOperator({"operators": entries} if entries else {}, inputs, sources, after)
