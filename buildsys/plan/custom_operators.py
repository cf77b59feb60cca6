"""Custom operators in the plan: what the stage ``operators`` makes, and what each backend takes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from buildsys.manifest.operator_choice import chosen_kind, implementations
from buildsys.plan.action import FileRef
from buildsys.plan.artifacts import Resolved
from buildsys.system.c_includes import language_of, linker_of

MAIN = "onnxruntime"  # validation runs its implementations, and the exported file has its functions
Entry = dict[
    str, Any
]  # how a backend implements one operator, where that is not the graph's own function


def operators_target(spec: Resolved) -> str:
    """Return the target that makes libraries and local functions."""
    return f"operators:{spec['model']}"


def graph_functions(spec: Resolved) -> dict[str, str]:
    """Return operator -> ``FILE.py:NAME`` of the local functions that the exported file has."""
    found = {}
    for entry in spec["ops"]:
        for backend in _backends(spec):
            if entry["op"] not in found and chosen_kind(entry, backend) == "function":
                found[entry["op"]] = implementations(entry, backend)["function"]
    return found


def backend_functions(spec: Resolved) -> dict[str, dict[str, str]]:
    """Return the functions that a backend takes instead of those of the graph, by backend and operator."""
    shared = graph_functions(spec)
    found: dict[str, dict[str, str]] = {}
    for backend in _backends(spec):
        own = {
            entry["op"]: implementations(entry, backend)["function"]
            for entry in spec["ops"]
            if chosen_kind(entry, backend) == "function"
        }
        changed = {op: reference for op, reference in own.items() if shared[op] != reference}
        found |= {backend: changed} if changed else {}
    return found


def operator_libraries(spec: Resolved) -> dict[str, Mapping[str, Any]]:
    """Return the libraries that a backend takes, by name: ``sources`` and ``flags``, or ``file`` and ``symbol``."""
    found: dict[str, Mapping[str, Any]] = {}
    for entry in spec["ops"]:
        for backend in _backends(spec):
            library = _library(entry, backend)
            if library is not None and library not in found.values():
                found[_fresh_name(library, found)] = library
    return found


def operator_entries(spec: Resolved, backend: str) -> list[Entry]:
    """Return how a backend implements each operator that it does not take as the graph's own function.

    ``kind`` is ``library``, ``plugin``, ``function`` (another one than the graph's), or None where there is nothing.
    """
    names = {
        json.dumps(library, sort_keys=True): name
        for name, library in operator_libraries(spec).items()
    }
    own = backend_functions(spec).get(backend, {})
    return [
        entry
        for declared in spec["ops"]
        for entry in _entries(declared, backend, names, own)
    ]  # fmt: skip


class Taken(NamedTuple):
    """What an action has of the custom operators; a model without them has nothing."""

    options: Mapping[str, Any] = {}
    inputs: Mapping[str, FileRef] = {}
    sources: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[str, ...]:
        """What changes the graph that a backend reads, and what runs plugins in Python."""
        return (*(("onnx",) if self.options else ()), *self.plugin_tools)

    @property
    def plugin_tools(self) -> tuple[str, ...]:
        """What runs plugins in Python; the libraries that they import are found in their files."""
        return ("python",) if self.sources else ()


NOTHING = Taken()


def taken(spec: Resolved, backend: str) -> Taken:
    """Return what an action that reads the graph for a backend takes from the stage ``operators``."""
    entries = operator_entries(spec, backend)
    if not entries:
        return NOTHING
    inputs = {
        _role(entry): library_ref(spec, entry["library"]) for entry in entries if "library" in entry
    }
    if any(entry["kind"] == "function" for entry in entries):
        inputs["functions"] = functions_ref(spec, backend)
    return Taken(
        {"operators": entries},
        inputs,
        _python_files(entries),
        (operators_target(spec),) if inputs else (),
    )


def loaded(spec: Resolved, engine: Mapping[str, Any]) -> Taken:
    """Return what an action that runs an engine takes: plugins, and libraries as they lie beside the engine."""
    entries = [
        entry
        for entry in operator_entries(spec, engine["backend"])
        if entry["kind"] in ("library", "plugin")
    ]
    if not entries:
        return NOTHING
    return Taken({"operators": entries}, engine_libraries(spec, engine), _python_files(entries))


def engine_libraries(spec: Resolved, engine: Mapping[str, Any]) -> dict[str, FileRef]:
    """Return the copies of libraries that make an engine's folder complete, by role."""
    entries = [entry for entry in operator_entries(spec, engine["backend"]) if "library" in entry]
    folder = f"{spec['model']}/engine/{engine['name']}"
    return {
        _role(entry): FileRef(f"{folder}/{entry['library']}.so", optional=True) for entry in entries
    }


def _role(entry: Entry) -> str:
    return f"library.{entry['library']}"


def _python_files(entries: list[Entry]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(entry["python"] for entry in entries if "python" in entry))


def functions_ref(spec: Resolved, backend: str = "") -> FileRef:
    """Return the file of the graph's local functions, or of those of a backend."""
    return FileRef(f"{spec['model']}/operators/functions{'.' if backend else ''}{backend}.onnx")


def library_ref(spec: Resolved, name: str) -> FileRef:
    """Return the file of a library."""
    return FileRef(f"{spec['model']}/operators/{name}.so")


def operator_options(spec: Resolved) -> dict[str, Any]:
    """Return what the stage ``operators`` uses of a manifest."""
    libraries = {name: dict(library) for name, library in operator_libraries(spec).items()}
    options = {"functions": _functions_by_role(spec), "libraries": libraries}
    return {name: value for name, value in options.items() if value}


def operator_outputs(spec: Resolved) -> dict[str, FileRef]:
    """Return the files of the stage ``operators`` by role."""
    return {
        **{
            role: FileRef(f"{spec['model']}/operators/{role}.onnx")
            for role in _functions_by_role(spec)
        },
        **{f"library.{name}": library_ref(spec, name) for name in operator_libraries(spec)},
        "result": FileRef(f"{spec['model']}/operators/operators.json"),
    }


def operator_sources(spec: Resolved) -> tuple[str, ...]:
    """Return the user's files that the stage ``operators`` reads."""
    functions = _functions_by_role(spec).values()
    files = [reference.rpartition(":")[0] for own in functions for reference in own.values()]
    for library in operator_libraries(spec).values():
        files += library["sources"] if "sources" in library else [library["file"]]
    return tuple(dict.fromkeys(files))


def _functions_by_role(spec: Resolved) -> dict[str, dict[str, str]]:
    """Return operator -> ``FILE.py:NAME`` for each file of local functions."""
    shared = graph_functions(spec)
    own = {
        f"functions.{backend}": functions for backend, functions in backend_functions(spec).items()
    }
    return {**({"functions": shared} if shared else {}), **own}


def operator_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what makes functions and libraries: onnx, and a compiler per language."""
    built = [
        library["sources"] for library in operator_libraries(spec).values() if "sources" in library
    ]
    compilers = {linker_of(sources) for sources in built} | {
        language_of(file) for sources in built for file in sources
    }
    return (*(("python", "onnx") if graph_functions(spec) else ()), *sorted(compilers))


def operator_devices(spec: Resolved) -> tuple[str, ...]:
    """Return the processor where a compiler is told to build for the one at hand."""
    flags = [
        flag for library in operator_libraries(spec).values() for flag in library.get("flags", ())
    ]
    return ("cpu",) if any(flag.endswith("=native") for flag in flags) else ()


def _backends(spec: Resolved) -> tuple[str, ...]:
    return tuple(dict.fromkeys((MAIN, *(engine["backend"] for engine in spec["engines"]))))


def _library(entry: Mapping[str, Any], backend: str) -> Mapping[str, Any] | None:
    kind = chosen_kind(entry, backend)
    if kind == "library":
        library = entry["library"]
        return {**library, "symbol": "RegisterCustomOps"} if "file" in library else library
    if kind == "plugin" and "library" in entry["plugin"]:
        return {"file": entry["plugin"]["library"], "symbol": ""}
    return None


def _entries(
    declared: Mapping[str, Any], backend: str, names: Mapping[str, str], own: Mapping[str, str]
) -> Iterator[Entry]:
    op, kind = declared["op"], chosen_kind(declared, backend)
    library = _library(declared, backend)
    if library is not None:
        yield {"op": op, "kind": kind, "library": names[json.dumps(library, sort_keys=True)]}
    elif kind == "plugin":
        yield {"op": op, "kind": kind, "python": declared["plugin"]["python"]}
    elif kind is None or op in own:
        yield {"op": op, "kind": kind}


def _fresh_name(library: Mapping[str, Any], taken: Mapping[str, Any]) -> str:
    stem = PurePosixPath(library["sources"][0] if "sources" in library else library["file"]).stem
    names = (f"{stem}-{number}" if number else stem for number in (0, *range(2, len(taken) + 3)))
    return next(name for name in names if name not in taken)
