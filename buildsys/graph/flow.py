"""Where the files of a model lie, and which graph and golden cases a stage reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from buildsys.graph.action import FileRef

Resolved = Mapping[str, Any]  # one manifest, resolved and validated, as plain JSON values


class Graph(NamedTuple):
    """A graph that later stages read, and the target that makes it."""

    folder: str
    target: str

    def refs(self) -> dict[str, FileRef]:
        """Return its files by role."""
        return onnx_refs(self.folder)


def exported_graph(spec: Resolved) -> Graph:
    """Return the graph that is simplified."""
    return Graph(f"{spec['model']}/export", f"export:{spec['model']}")


def simplified_graph(spec: Resolved) -> Graph:
    """Return the graph that is converted and built."""
    return Graph(f"{spec['model']}/simplify", f"simplify:{spec['model']}")


def converted_graph(spec: Resolved, precision: str) -> Graph:
    """Return the graph that engines of this precision are built from, which is not fp32."""
    return Graph(f"{spec['model']}/convert/{precision}", f"convert:{spec['model']}:{precision}")


def origins_ref(spec: Resolved) -> dict[str, FileRef]:
    """Return the file that says from which source lines the nodes of the exported graph come, by role."""
    if "onnx" in spec["source"]:
        return {}
    return {"origins": FileRef(f"{spec['model']}/export/origins.json", optional=True)}


def golden_target(spec: Resolved) -> str:
    """Return the target that makes the golden cases."""
    return f"reference:{spec['model']}"


def golden_refs(spec: Resolved, cases: Iterable[str]) -> dict[str, FileRef]:
    """Return the files of golden cases by role."""
    return {f"case.{case}": FileRef(case_path(spec["model"], case)) for case in cases}


def engine_path(model: str, engine: Mapping[str, Any]) -> str:
    """Return the engine's file."""
    suffix = "onnx" if engine["backend"] == "onnxruntime" else "engine"
    return f"{model}/engine/{engine['name']}/engine.{suffix}"


def engine_refs(model: str, engine: Mapping[str, Any]) -> dict[str, FileRef]:
    """Return the files of an engine by role."""
    path = engine_path(model, engine)
    return {"engine": FileRef(path, optional=True), "engine.data": FileRef(f"{path}.data", optional=True)}


def onnx_refs(folder: str) -> dict[str, FileRef]:
    """Return the files of a graph by role."""
    return {"model": FileRef(f"{folder}/model.onnx"), "model.data": FileRef(f"{folder}/model.onnx.data", optional=True)}


def case_path(model: str, case: str) -> str:
    """Return the file of a golden case."""
    return f"{model}/reference/{case}.npz"
