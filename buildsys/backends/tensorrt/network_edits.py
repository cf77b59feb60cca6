"""What is done to a parsed network before it is built: formats and types of tensors, precisions, the user's hook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import DTYPES, FORMATS
from buildsys.backends.tensorrt.inspector import DTYPE_OF_PRECISION
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import Messages
from buildsys.errors import StageError
from buildsys.models.user_code import (
    check_parameters,
    load_callable,
    reraise_as_stage_error,
    with_article,
)
from buildsys.system.suggestions import nearest

_COMPUTED = (
    "float32",
    "float16",
    "bfloat16",
    "int8",
)  # types of tensors that a layer's precision can change


def set_formats(
    library: Library, network: Any, io: Mapping[str, Mapping[str, Any]], *, strong: bool
) -> None:
    """Set the layout and the type of inputs and outputs.

    Raises: StageError: there is no such tensor, or its type is the graph's.
    """
    tensors = {tensor.name: tensor for tensor in _io_tensors(network)}
    for name, wanted in io.items():
        tensor = tensors.get(name)
        if tensor is None:
            near = nearest(name, tensors, count=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(tensors)}"
            raise StageError(f"io.{name}: the graph has no input or output of this name", hint)
        if wanted["format"] is not None:
            tensor.allowed_formats = 1 << int(FORMATS.of(library, wanted["format"]))
        dtype = wanted["dtype"]
        if dtype is None or tensor.dtype == _dtype(library, f"io.{name}.dtype", dtype):
            continue
        if strong:
            has = DTYPES.words(library)[tensor.dtype]
            text = f"io.{name}.dtype: {dtype} is not what the graph has, {has}, and a strongly typed engine keeps that"
            raise StageError(text, "cast it in the graph (surgery), or set typing: weak")
        tensor.dtype = _dtype(library, f"io.{name}.dtype", dtype)


def set_layer_precisions(
    library: Library, network: Any, entries: Sequence[Mapping[str, str]]
) -> None:
    """Give layers the precision of the last entry whose pattern fits their name.

    Raises: StageError: a pattern fits no layer.
    """
    computed = _computed_layers(library, network)
    names = [layer.name for layer in computed]
    for entry in entries:
        if not any(fnmatchcase(name, entry["layers"]) for name in names):
            near = nearest(entry["layers"], names, cutoff=0.3)
            hint = f"layers are named like {', '.join(near or names[:3])}"
            raise StageError(f"layer_precisions: no layer fits the pattern {entry['layers']}", hint)
    for layer in computed:
        fitting = [
            entry["precision"] for entry in entries if fnmatchcase(layer.name, entry["layers"])
        ]
        if fitting:
            dtype = DTYPES.of(library, DTYPE_OF_PRECISION[fitting[-1]])
            version_adapter.set_layer_precision(library, layer, dtype)


def call_hook(reference: str, project: Path, network: Any, config: Any, messages: Messages) -> None:
    """Let the user's function change the network and the configuration.

    Raises: StageError: the file or function is not there, takes other parameters, raises, returns something, or did
    what TensorRT refuses.
    """
    hook = load_callable(reference, project)
    takes = "a network hook takes two, the network and the configuration"
    check_parameters(hook, reference, 2, takes, "def tweak(network, config): …")
    with reraise_as_stage_error(f"{reference} failed", project):
        returned = hook(network, config)
    if returned is not None:
        what = with_article(type(returned).__name__)
        text = f"{reference} returned {what}; a network hook changes the network in place and returns nothing"
        raise StageError(text, "take out what it returns")
    if messages.errors:
        raise StageError(f"{reference} did what TensorRT refuses: {messages.sentence('')}")
    if network.num_outputs == 0:
        raise StageError(
            f"{reference} left the network without outputs", "mark one: network.mark_output(tensor)"
        )


def io_facts(library: Library, network: Any, io: Mapping[str, Mapping[str, Any]]) -> Figures:
    """Return the inputs and outputs of a network: name, type, shape with the names of axes, and layout."""
    dtypes = DTYPES.words(library)

    def facts(tensor: Any) -> Figures:
        # an axis whose name is unknown reads as ""
        sizes = [
            n if n >= 0 else tensor.get_dimension_name(axis) or "?"
            for axis, n in enumerate(tensor.shape)
        ]
        layout = io.get(tensor.name, {}).get("format") or "linear"
        return {
            "name": tensor.name,
            "dtype": dtypes[tensor.dtype],
            "shape": sizes,
            "format": layout,
        }

    return {
        "inputs": [facts(network.get_input(index)) for index in range(network.num_inputs)],
        "outputs": [facts(network.get_output(index)) for index in range(network.num_outputs)],
    }


def _io_tensors(network: Any) -> Iterator[Any]:
    yield from (network.get_input(index) for index in range(network.num_inputs))
    yield from (network.get_output(index) for index in range(network.num_outputs))


def _computed_layers(library: Library, network: Any) -> list[Any]:
    """Return the layers whose results have a type that can be chosen: none of constants, quantizers or shapes."""
    kinds = library.trt.LayerType
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    words = DTYPES.words(library)
    return [
        layer
        for layer in layers
        if layer.type not in (kinds.CONSTANT, kinds.SHAPE, kinds.QUANTIZE, kinds.DEQUANTIZE)
        and layer.num_outputs
        and all(
            words[tensor.dtype] in _COMPUTED and not tensor.is_shape_tensor
            for tensor in (layer.get_output(index) for index in range(layer.num_outputs))
        )
    ]


def _dtype(library: Library, field: str, name: str) -> Any:
    if name not in DTYPES.members:
        raise StageError(
            f"{field}: {library.title} has no tensors of {name}",
            f"it has {', '.join(DTYPES.members)}",
        )
    return DTYPES.of(library, name)
