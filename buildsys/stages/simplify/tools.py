"""The simplifiers onnxsim, without its metadata and random file names, and onnxslim."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto, TensorProto
from onnx.external_data_helper import load_external_data_for_model

from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.onnx_file import (
    DATA_SUFFIX,
    ONE_MESSAGE_LIMIT,
    data_path,
    file_bytes,
    first_line,
    load_model,
    outside_bytes,
    save_model,
    tensors_of,
)
from buildsys.stages.simplify.offloaded_weights import offload_weights, restore_weights

_MAX_THRESHOLD = 2**31 - 10000  # onnxsim refuses larger ones
_METADATA_PREFIX = "onnxsim."


def simplify_by_onnxsim(
    source: Path, target: Path, spec: Mapping[str, Any], initializers_are_inputs: bool
) -> None:
    """Write the simplified graph of ``source`` to ``target``.

    Raises: StageError: onnxsim refuses the graph or an option.
    """
    options: dict[str, Any] = {
        "skip_constant_folding": not spec["constant_folding"],
        "skip_shape_inference": not spec["shape_inference"],
        "perform_optimization": spec["fuse"],
        "mutable_initializer": initializers_are_inputs,
    }
    threshold = spec["tensor_size_threshold"]
    if threshold is not None and threshold > _MAX_THRESHOLD:
        raise StageError(
            f"simplify.tensor_size_threshold: {threshold} bytes exceed onnxsim's limit of 2 GB",
            f"set at most {_MAX_THRESHOLD}",
        )
    if threshold is not None:
        options["tensor_size_threshold"] = f"{threshold}B"
    onnxsim = _import_onnxsim()
    try:
        _run(onnxsim, source, target, options)
    except StageError:
        raise
    except Exception as error:  # its C++ core passes on ONNX's exceptions
        raise StageError(
            f"onnxsim cannot simplify the graph: {first_line(error)}",
            "try simplify: {tool: onnxslim}",
        ) from error


def _run(onnxsim: ModuleType, source: Path, target: Path, options: Mapping[str, Any]) -> None:
    # weights inside a graph would be in memory once more, in addition to the tool's copies
    is_external = data_path(source).exists()
    skeleton = load_model(source, external_data=False) if is_external else ModelProto()
    order = {tensor.name: index for index, tensor in enumerate(skeleton.graph.initializer)}
    can_offload = not options["mutable_initializer"]
    offloaded = offload_weights(skeleton, source.parent) if can_offload else []
    if file_bytes(source) - sum(map(outside_bytes, offloaded)) < ONE_MESSAGE_LIMIT:
        given: str | ModelProto = str(source)
        if offloaded:
            load_external_data_for_model(skeleton, str(source.parent))
            given = skeleton
        model: ModelProto
        model, _ = onnxsim.simplify(given, **options)
        _strip_metadata(model)
        restore_weights(model, offloaded)
        # in the same order, the weights file is identical unless weights changed, and stored once
        model.graph.initializer.sort(key=lambda tensor: order.get(tensor.name, len(order)))
        save_model(model, target, weights_of=source)
        return
    # from file to file, without messages above 2 GiB
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="onnxsim-") as folder:
        raw = Path(folder) / "model.onnx"
        onnxsim.simplify(str(source), output_path=str(raw), **options)
        _publish(raw, target)


def _publish(raw: Path, target: Path) -> None:
    """Move the result to ``target``; its data file has a random name."""
    model = load_model(raw, external_data=False)
    _strip_metadata(model)
    name = target.name + DATA_SUFFIX
    locations = set()
    for tensor in tensors_of(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            for entry in tensor.external_data:
                if entry.key == "location":
                    locations.add(entry.value)
                    entry.value = name
    if len(locations) > 1:
        raise StageError(
            f"onnxsim wrote the weights to {len(locations)} files instead of one",
            "try simplify: {tool: onnxslim}",
        )
    for location in locations:
        (raw.parent / location).replace(target.with_name(name))
    save_model(model, target)


def _import_onnxsim() -> ModuleType:
    """Import onnxsim without torch: 0.5 s instead of 1.6 s."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        import onnxsim
    finally:
        if hidden:
            del sys.modules["torch"]
    module: ModuleType = onnxsim
    return module


@contextlib.contextmanager
def onnxsim_environment() -> Iterator[None]:
    """Set onnxsim's variables, outside of any other threads; the user's own stay.

    ONNX Runtime reads the environment in C while onnxsim works. A new variable would move it and
    crash the reader, a known one is replaced.
    """
    variables = {
        "ONNXSIM_CERTIFY": "0",  # no proof: the stage compares outputs
        "ONNXSIM_GEMM_FUSION_BACKEND": "ort_cpu",  # simplify() sets it
    }
    new = [name for name in variables if name not in os.environ]
    os.environ.update({name: variables[name] for name in new})
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


def _strip_metadata(model: ModelProto) -> None:
    kept = [entry for entry in model.metadata_props if not entry.key.startswith(_METADATA_PREFIX)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def simplify_by_onnxslim(
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
