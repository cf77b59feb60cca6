"""Simplification by onnxslim."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.onnx_file import first_line, load_model, save_model


def simplify(
    source: Path, target: Path, spec: Mapping[str, Any], initializers_are_inputs: bool
) -> None:
    """Write the simplified graph of ``source`` to ``target``.

    Raises: Unavailable: onnxslim is not installed. StageError: it refuses the graph.
    """
    if initializers_are_inputs:
        raise StageError(
            "onnxslim cannot keep initializers that are inputs", "use simplify: {tool: onnxsim}"
        )
    try:
        import onnxslim
    except ImportError as error:
        raise Unavailable("onnxslim is not installed", "pip install 'buildsys[slim]'") from error
    skipped = [] if spec["constant_folding"] else ["constant_folding"]
    skipped += [] if spec["fuse"] else ["graph_fusion"]
    model = load_model(source)
    try:
        slimmed = onnxslim.slim(
            model,
            no_shape_infer=not spec["shape_inference"],
            skip_optimizations=skipped or None,
            size_threshold=spec["tensor_size_threshold"],
        )
    except Exception as error:  # any class, from its rewriting
        raise StageError(
            f"onnxslim cannot simplify the graph: {first_line(error)}",
            "try simplify: {tool: onnxsim}",
        ) from error
    if slimmed is None:
        raise StageError("onnxslim returned no graph", "try simplify: {tool: onnxsim}")
    save_model(slimmed, target)
