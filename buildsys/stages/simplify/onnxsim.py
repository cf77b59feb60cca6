"""Call onnxsim, and undo what it leaves behind: metadata and data files with random names."""

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

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    DATA_SUFFIX,
    ONE_MESSAGE_LIMIT,
    file_bytes,
    first_line,
    has_outside_weights,
    load_model,
    outside_bytes,
    save_model,
    tensors_of,
)
from buildsys.stages.simplify.offloaded_weights import put_back, set_aside

_LARGEST_THRESHOLD = 2**31 - 10000  # beyond it onnxsim refuses
_METADATA_PREFIX = "onnxsim."


def simplify(
    source: Path, target: Path, spec: Mapping[str, Any], initializers_are_inputs: bool
) -> None:
    """Write the simplified graph of ``source`` to ``target``.

    Raises: StageError: onnxsim refuses the graph, or an option has no meaning for it.
    """
    options = {**_options(spec), "mutable_initializer": initializers_are_inputs}
    onnxsim = _import_onnxsim()
    try:
        with _uncertified():
            # a graph that holds its weights would hold them once more while the tool has its own copies
            skeleton = (
                load_model(source, external_data=False)
                if has_outside_weights(source)
                else ModelProto()
            )
            order = {tensor.name: place for place, tensor in enumerate(skeleton.graph.initializer)}
            aside = [] if initializers_are_inputs else set_aside(skeleton, source.parent)
            if file_bytes(source) - sum(map(outside_bytes, aside)) < ONE_MESSAGE_LIMIT:
                model = _simplified(onnxsim, skeleton if aside else None, source, options)
                put_back(model, aside)
                # where no weight has changed, the file of weights is the same, and is stored once
                model.graph.initializer.sort(key=lambda tensor: order.get(tensor.name, len(order)))
                save_model(model, target, weights_of=source)
            else:
                _simplify_files(onnxsim, source, target, options)
    except StageError:
        raise
    except Exception as error:  # its C++ core raises whatever ONNX raises
        raise StageError(
            f"onnxsim cannot simplify the graph: {first_line(error)}",
            "try simplify: {tool: onnxslim}",
        ) from error


def _simplified(
    onnxsim: ModuleType, skeleton: ModelProto | None, source: Path, options: Mapping[str, Any]
) -> ModelProto:
    """Simplify in memory; ``skeleton`` stands for ``source`` where some weights are set aside."""
    if skeleton is not None:
        load_external_data_for_model(skeleton, str(source.parent))
    model: ModelProto
    model, _ = onnxsim.simplify(str(source) if skeleton is None else skeleton, **options)
    _strip_metadata(model)
    return model


def _simplify_files(
    onnxsim: ModuleType, source: Path, target: Path, options: Mapping[str, Any]
) -> None:
    """Simplify from file to file: no message of more than 2 GiB comes about."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="onnxsim-") as folder:
        raw = Path(folder) / "model.onnx"
        onnxsim.simplify(str(source), output_path=str(raw), **options)
        _publish(raw, target)


def _options(spec: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "skip_constant_folding": not spec["constant_folding"],
        "skip_shape_inference": not spec["shape_inference"],
        "perform_optimization": spec["fuse"],
    }
    threshold = spec["tensor_size_threshold"]
    if threshold is not None:
        if threshold > _LARGEST_THRESHOLD:
            raise StageError(
                f"simplify.tensor_size_threshold: {threshold} bytes is more than onnxsim takes (2 GB)"
            )
        options["tensor_size_threshold"] = f"{threshold}B"
    return options


def _import_onnxsim() -> ModuleType:
    """Import onnxsim without torch, which it does not need: 0.5 s and 100 MB instead of 1.6 s and 580 MB."""
    with _hidden("torch"):
        import onnxsim
    module: ModuleType = onnxsim
    return module


@contextlib.contextmanager
def _uncertified() -> Iterator[None]:
    """Keep onnxsim from attempting a proof, which this stage's comparison replaces, unless the user has it do so."""
    if "ONNXSIM_CERTIFY" in os.environ:
        yield
        return
    os.environ["ONNXSIM_CERTIFY"] = "0"
    try:
        yield
    finally:
        del os.environ["ONNXSIM_CERTIFY"]


@contextlib.contextmanager
def _hidden(module: str) -> Iterator[None]:
    if module in sys.modules:  # already paid for
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


def _publish(raw: Path, target: Path) -> None:
    model = load_model(raw, external_data=False)
    _strip_metadata(model)
    _rename_data(model, raw.parent, target)
    save_model(model, target)


def _strip_metadata(model: ModelProto) -> None:
    kept = [entry for entry in model.metadata_props if not entry.key.startswith(_METADATA_PREFIX)]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)


def _rename_data(model: ModelProto, folder: Path, target: Path) -> None:
    """Give the data file the name that belongs to ``target``; onnxsim draws a random one."""
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
            f"onnxsim spread the weights over {len(locations)} files, which is not supported"
        )
    for location in locations:
        (folder / location).replace(target.with_name(name))
