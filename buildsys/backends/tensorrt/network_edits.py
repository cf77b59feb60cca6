"""Changes to a parsed network: formats, types, precisions, the user's hook."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Any

from buildsys.backends.interface import Figures
from buildsys.backends.layer_figures import DTYPE_OF_PRECISION, shares
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import Messages, TensorRTLibrary, dtype_words, value_of
from buildsys.backends.tensorrt.network import io_tensors
from buildsys.errors import StageError
from buildsys.models.user_code import load_callable, reraise_as_stage_error

_PREFIX = re.compile(r"^node_of_|^[a-z_]+_(before|after)_")  # "reshape_before_/head/Gemm"
_UNNAMED = "(Unnamed Layer"
# types of tensors whose layer has a choice of precision
_COMPUTED = ("float32", "float16", "bfloat16", "int8")


def set_formats(
    library: TensorRTLibrary, network: Any, io: Mapping[str, Mapping[str, Any]], *, strong: bool
) -> None:
    """Set the layout and the type of inputs and outputs."""
    inputs, outputs = io_tensors(network)
    tensors = {tensor.name: tensor for tensor in (*inputs, *outputs)}
    for name, chosen in io.items():
        tensor = tensors.get(name)
        if tensor is None:
            text = f"io.{name}: the graph has no input or output of this name"
            raise StageError(text, f"it has {', '.join(tensors)}")
        if chosen["format"] is not None:
            tensor.allowed_formats = 1 << int(value_of(library, "TensorFormat", chosen["format"]))
        if chosen["dtype"] is not None:
            dtype = value_of(library, "DataType", chosen["dtype"])
            if tensor.dtype == dtype:
                continue
            if strong:
                text = f"io.{name}.dtype: a strongly typed engine keeps the types of its graph"
                raise StageError(text, "cast it in the graph (surgery), or set typing: weak")
            tensor.dtype = dtype


def computed_layers(library: TensorRTLibrary, network: Any) -> list[Any]:
    """Return the layers with a choice of precision."""
    kinds, words = library.trt.LayerType, dtype_words(library)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
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


def set_layer_precisions(
    library: TensorRTLibrary, network: Any, entries: Sequence[Mapping[str, str]]
) -> None:
    """Give layers the precision of the last matching entry."""
    computed = computed_layers(library, network)
    names = [layer.name for layer in computed]
    for entry in entries:
        if not any(fnmatchcase(name, entry["layers"]) for name in names):
            text = f"layer_precisions: the pattern {entry['layers']} matches no layer"
            raise StageError(text, f"layers are named like {', '.join(names[:3])}")
    for layer in computed:
        matching = [entry for entry in entries if fnmatchcase(layer.name, entry["layers"])]
        if matching:
            dtype = value_of(library, "DataType", DTYPE_OF_PRECISION[matching[-1]["precision"]])
            version_adapter.set_layer_precision(library, layer, dtype)


def fp32_layers(layers: Sequence[Any], nodes: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return those of ``layers`` that compute graph ``nodes``, as ``layer_precisions``.

    The parser makes several layers of some nodes. One has the node's name or result, the others
    have a prefix or no name: those next to a layer in fp32 stay there too, or a value
    beyond the range would pass through 16 bits.
    """
    if "*" in nodes:
        return [{"layers": "*", "precision": "fp32"}]
    results = {name for names in nodes.values() for name in names}
    read = [_names(layer.get_input(i) for i in range(layer.num_inputs)) for layer in layers]
    written = [_names(layer.get_output(i) for i in range(layer.num_outputs)) for layer in layers]
    in_fp32 = {
        index
        for index, layer in enumerate(layers)
        if _PREFIX.sub("", layer.name) in nodes or written[index] & results
    }
    unnamed = {i for i, layer in enumerate(layers) if layer.name.startswith(_UNNAMED)}
    added = in_fp32
    while added:
        near = {name for index in added for name in read[index] | written[index]}
        added = {i for i in unnamed - in_fp32 if (read[i] | written[i]) & near}
        in_fp32 |= added
    return [{"layers": escape(layers[i].name), "precision": "fp32"} for i in sorted(in_fp32)]


def _names(tensors: Iterator[Any]) -> set[str]:
    return {tensor.name for tensor in tensors if tensor is not None}  # None: an optional input


def call_hook(reference: str, project: Path, network: Any, config: Any, messages: Messages) -> None:
    """Let the user's function change the network and the configuration."""
    hook = load_callable(reference, project)
    with reraise_as_stage_error(f"{reference} failed", project):
        hook(network, config)
    if messages.errors:
        problem = f"{reference} did what TensorRT refuses: {messages.error_text('')}"
        raise StageError(problem, "correct the hook")


def network_facts(
    library: TensorRTLibrary,
    network: Any,
    io: Mapping[str, Mapping[str, Any]],
    declared: Mapping[str, Mapping[str, Any]],
) -> Figures:
    """Collect inputs and outputs, layers, and shares per type, before fusion.

    A dynamic size has the parser's name, or that of the ``declared`` input: a name given to a
    network whose shapes have been read is an error in TensorRT 8.6.
    """
    dtypes = dtype_words(library)

    def facts(tensor: Any) -> Figures:
        named = dict(enumerate(declared.get(tensor.name, {}).get("shape") or ()))
        sizes = [
            size if size >= 0 else tensor.get_dimension_name(axis) or named.get(axis, "?")
            for axis, size in enumerate(tensor.shape)
        ]
        layout = io.get(tensor.name, {}).get("format") or "linear"
        dtype = dtypes[tensor.dtype]
        return {"name": tensor.name, "dtype": dtype, "shape": sizes, "format": layout}

    inputs, outputs = io_tensors(network)
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    kinds = Counter(str(layer.type.name).lower() for layer in layers)
    types = Counter(dtypes[layer.get_output_type(0)] for layer in layers if layer.num_outputs)
    return {
        "layers": dict(sorted(kinds.items())),
        "precision_shares": {"layers": shares(types)},
        "precision_of": "network",
        "inputs": list(map(facts, inputs)),
        "outputs": list(map(facts, outputs)),
    }
