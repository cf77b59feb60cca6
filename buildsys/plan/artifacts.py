"""Where the files of a model lie, and which graph and golden cases a stage reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from buildsys.plan.action import FileRef
from buildsys.plan.surgery_points import AFTER_EXPORT, AFTER_SIMPLIFY, golden_point, steps_of

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
    return _last_graph(spec, AFTER_EXPORT)


def simplified_graph(spec: Resolved) -> Graph:
    """Return the graph that is converted and built."""
    return _last_graph(spec, AFTER_SIMPLIFY)


def graph_before(spec: Resolved, when: str) -> Graph:
    """Return the graph that the surgery of ``when`` starts from."""
    stage = {AFTER_EXPORT: "export", AFTER_SIMPLIFY: "simplify"}[when]
    return Graph(f"{spec['model']}/{stage}", f"{stage}:{spec['model']}")


def _last_graph(spec: Resolved, when: str) -> Graph:
    if not steps_of(spec, when):
        return graph_before(spec, when)
    return Graph(f"{spec['model']}/surgery/{when}", f"surgery:{spec['model']}:{when}")


def converted_graph(spec: Resolved, precision: str) -> Graph:
    """Return the graph that engines of this precision are built from, which is not fp32."""
    return Graph(f"{spec['model']}/convert/{precision}", f"convert:{spec['model']}:{precision}")


def calibrated(spec: Resolved, *roles: str) -> dict[str, FileRef]:
    """Return files of the calibration by role: ``batches`` and ``ranges``."""
    names = {"batches": "batches.npz", "ranges": "ranges.json"}
    return {role: FileRef(f"{spec['model']}/calibrate/{names[role]}") for role in roles}


def calibration_cache(model: str, engine: Mapping[str, Any]) -> dict[str, FileRef]:
    """Return the ranges as the builder of an engine has found them, by role."""
    return {
        "calibration": FileRef(f"{model}/engine/{engine['name']}/calibration.cache", optional=True)
    }


def golden_target(spec: Resolved, point: str = AFTER_SIMPLIFY) -> str:
    """Return the target that makes the golden cases of a point in the chain."""
    made_at = golden_point(spec, point)
    return f"surgery:{spec['model']}:{made_at}" if made_at else f"reference:{spec['model']}"


def origins_ref(spec: Resolved) -> dict[str, FileRef]:
    """Return the file that says from which source lines the nodes of the exported graph come, by role."""
    if "onnx" in spec["source"]:
        return {}
    return {"origins": FileRef(f"{spec['model']}/export/origins.json", optional=True)}


def golden_refs(
    spec: Resolved, cases: Iterable[str], point: str = AFTER_SIMPLIFY, prefix: str = ""
) -> dict[str, FileRef]:
    """Return the files of the golden cases of a point in the chain, by role."""
    made_at = golden_point(spec, point)
    folder = f"{spec['model']}/surgery/{made_at}" if made_at else f"{spec['model']}/reference"
    return {f"{prefix}case.{case}": FileRef(f"{folder}/{case}.npz") for case in cases}


def engine_path(model: str, engine: Mapping[str, Any]) -> str:
    """Return the engine's file."""
    suffix = "onnx" if engine["backend"] == "onnxruntime" else "engine"
    return f"{model}/engine/{engine['name']}/engine.{suffix}"


def engine_refs(model: str, engine: Mapping[str, Any]) -> dict[str, FileRef]:
    """Return the files of an engine by role."""
    path = engine_path(model, engine)
    return {
        "engine": FileRef(path, optional=True),
        "engine.data": FileRef(f"{path}.data", optional=True),
    }


def onnx_refs(folder: str) -> dict[str, FileRef]:
    """Return the files of a graph by role."""
    return {
        "model": FileRef(f"{folder}/model.onnx"),
        "model.data": FileRef(f"{folder}/model.onnx.data", optional=True),
    }
