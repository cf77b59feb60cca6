"""Networks with named inputs and outputs, as declared in a manifest.

Inputs go to ``forward`` in the manifest's order, those with ``keyword`` by that keyword, or as
``call`` arranges them: a string is the name of an input, ``{tuple: […]}`` a tuple and
``{text: …}`` a string. Forward may return a tensor, or nested tuples, lists, dicts and dataclasses
of tensors; the tensors are numbered or, below a dict, named by their path (``boxes``, ``heads.0``).
None is left out.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.models.random_weights import measuring_layers
from buildsys.models.sources.source_module import GPU, make_module, needs_gpu
from buildsys.models.user_code import reraise_as_stage_error, unmet_shape
from buildsys.onnx_graphs.tensors import BIT_DTYPES, NATIVE_DTYPES, Array, Tensor, tensor_of

_TORCH_NAMES = {
    **{name: name for name in (*NATIVE_DTYPES, "bfloat16")},
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
}
_MANIFEST_NAMES = {theirs: ours for ours, theirs in _TORCH_NAMES.items()}
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Network:
    """A module with its calling convention."""

    module: nn.Module
    keywords: Mapping[str, str | None]  # input -> keyword of forward; None: by position
    declared: Mapping[str, Mapping[str, Any]]  # output -> {key, …}; empty: as forward returns
    project: Path
    weights: str  # their origin, for the report
    call: Mapping[str, Any] | None = None  # the manifest's section
    example_result: Any = None  # forward's result, if the example had to run for the weights
    on_gpu: bool = False

    def arguments(self, inputs: Tensors) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arrange the positional and keyword arguments of forward."""
        if self.call is not None:
            args, kwargs = (_arranged(self.call[part], inputs) for part in ("args", "kwargs"))
            return tuple(args), kwargs
        positional = tuple(inputs[name] for name, key in self.keywords.items() if key is None)
        named = {key: inputs[name] for name, key in self.keywords.items() if key is not None}
        return positional, named

    def result(self, inputs: Tensors) -> Any:
        """Call forward.

        Raises: StageError: forward raised; the message has the inputs and the line.
        """
        if self.on_gpu:
            inputs = {name: tensor.to(GPU) for name, tensor in inputs.items()}
        positional, named = self.arguments(inputs)
        what = f"forward of {type(self.module).__name__} failed on {_describe(inputs)}"
        with reraise_as_stage_error(what, self.project):
            return self.module(*positional, **named)

    def __call__(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Compute the outputs by name, in the manifest's order.

        Raises: StageError: forward raised, or its outputs differ from the declared ones.
        """
        return self.name_outputs(self.result(inputs))

    def name_outputs(self, result: Any) -> dict[str, torch.Tensor]:
        """Order the result of forward by output name.

        Raises: StageError: it differs from the declared outputs, or a name is that of an input.
        """
        outputs = name_outputs(result, self.declared)
        if taken := next((name for name in outputs if name in self.keywords), None):
            example = f"{taken}_out: {{key: {taken}}}"
            raise StageError(
                f"output {taken} has the name of an input",
                f"give it another name in outputs, such as {example}",
            )
        return outputs


def _arranged(value: Any, inputs: Tensors) -> Any:
    """Fill inputs into an argument of ``call``."""
    if isinstance(value, str):
        return inputs[value]
    if isinstance(value, list):
        return [_arranged(member, inputs) for member in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tuple"}:
        return tuple(_arranged(value["tuple"], inputs))
    if value.keys() == {"text"}:
        return value["text"]
    return {key: _arranged(member, inputs) for key, member in value.items()}


def make_network(options: Mapping[str, Any], project: Path) -> Network:
    """Build the network of a stage's options: ``source``, ``example``, ``inputs``, ``outputs``.

    Raises: StageError: it cannot be built, its weights are unavailable, or the example fails.
    """
    made = make_module(options["source"], project)
    keywords = {
        name: signature["keyword"] or (name if made.by_keyword else None)
        for name, signature in options["inputs"].items()
    }
    network = Network(
        made.module,
        keywords,
        options["outputs"],
        project,
        made.weights,
        options.get("call"),
        on_gpu=needs_gpu(options["source"]),
    )
    if not made.needs_forward:
        return network
    with torch.no_grad(), measuring_layers(made.module, options["source"]["seed"]):
        example = example_inputs(options, project)
        return replace(network, example_result=network.result(example))


def main_float_type(module: nn.Module) -> str:
    """Find the float type of most weights; empty without weights."""
    counts: Counter[str] = Counter()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            counts[dtype_name(tensor.dtype)] += tensor.numel()
    return max(counts, key=counts.__getitem__, default="")


def example_inputs(options: Mapping[str, Any], project: Path) -> dict[str, torch.Tensor]:
    """Make inputs of the example's sizes, on the network's device.

    They are traced, and random weights are measured on them. Without ``data``, floats are normal;
    indices, counts and masks are ones.
    Raises: StageError: the data does not fit the input, or cannot be read.
    """
    seed = options["source"]["seed"]
    generator = torch.Generator().manual_seed(seed)
    example: dict[str, torch.Tensor] = {}
    for name, signature in options["inputs"].items():
        shape, dtype = concrete_shape(signature["shape"], options["example"]), signature["dtype"]
        if data := options["data"][name]:
            try:
                example[name] = to_torch(
                    golden_input(name, shape, dtype, data, case="min", seed=seed, project=project)
                )
                continue
            except StageError:
                if "python" not in data:
                    raise
                # the callable knows the sizes of the manifest's cases only
        is_float = "float" in dtype or "complex" in dtype
        values = (
            torch.randn(shape, generator=generator).numpy() if is_float else np.ones(shape, np.int8)
        )
        example[name] = to_torch(tensor_of(values, dtype))
    if needs_gpu(options["source"]):
        return {name: tensor.to(GPU) for name, tensor in example.items()}
    return example


def name_outputs(result: Any, declared: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Order the result of forward by output name.

    Raises: StageError: a key or the number of outputs differs, or an output is not a tensor.
    """
    is_mapping = _fields(result) is not None
    tensors: dict[str, torch.Tensor] = {}
    for index, (path, leaf) in enumerate(_leaves(result, "")):
        if not isinstance(leaf, torch.Tensor):
            raise StageError(
                f"forward returned {type(leaf).__name__} as output {path or index};"
                " only tensors can be outputs",
                "let the callable of source.python return a module that calls this network and"
                " returns tensors",
            )
        tensors[path if is_mapping else f"output{index}"] = leaf
    if not tensors:
        raise StageError(
            f"forward returned {type(result).__name__}, without a tensor",
            "let it return tensors, also in tuples, lists, dicts or dataclasses",
        )
    if not declared:
        return tensors
    keys = {name: output["key"] or name for name, output in declared.items()}
    if not is_mapping and not any(output["key"] for output in declared.values()):
        keys = dict(zip(declared, tensors, strict=False))  # by position
    missing = [key for key in keys.values() if key not in tensors]
    if missing or len(declared) != len(tensors):
        sizes = [f"{n} {dtype_name(t.dtype)} {list(t.shape)}" for n, t in tensors.items()]
        raise StageError(
            f"forward returned {', '.join(sizes)}; the manifest declares {', '.join(declared)}",
            f"correct the key of {missing[0]}" if missing else "declare one output per tensor",
        )
    return {name: tensors[key] for name, key in keys.items()}


def check_outputs(
    outputs: Tensors,
    declared: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, int],
    inputs: Tensors,
) -> None:
    """Compare the shapes and dtypes of ``outputs`` with the declared ones.

    Raises: StageError: one differs.
    """
    for name, output in declared.items():
        shape, dtype = list(outputs[name].shape), dtype_name(outputs[name].dtype)
        if output["dtype"] not in (None, dtype):
            raise StageError(
                f"output {name} is {dtype}, the manifest declares {output['dtype']}",
                "correct the dtype in outputs",
            )
        if output["shape"] and (expected := unmet_shape(shape, output["shape"], dims)):
            raise StageError(
                f"output {name} has the shape {shape} for {_describe(inputs)},"
                f" the manifest declares {expected}",
                "correct the shape in outputs, null for a size that follows from others",
            )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the manifest's name of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    return _MANIFEST_NAMES.get(name, name)


def to_torch(tensor: Tensor) -> torch.Tensor:
    """Convert to a torch tensor; forward may write into it.

    Raises: StageError: torch has no tensors of this dtype.
    """
    dtype = getattr(torch, _TORCH_NAMES.get(tensor.dtype, ""), None)
    if not isinstance(dtype, torch.dtype):
        raise StageError(
            f"a PyTorch network cannot take or return {tensor.dtype} tensors",
            "use an ONNX file for such a model (source: {onnx: FILE})",
        )
    values = torch.from_numpy(tensor.array.copy())
    return values.view(dtype) if tensor.dtype in BIT_DTYPES else values.to(dtype)


def from_torch(tensor: torch.Tensor) -> Tensor:
    """Convert a torch tensor to a numpy one.

    Raises: StageError: the tensor is not dense.
    """
    name = dtype_name(tensor.dtype)
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise StageError(
            f"only dense tensors can be outputs, not {tensor.layout} {name}",
            "call to_dense() or dequantize() in forward",
        )
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if name in BIT_DTYPES:
        bits: Array = plain.view(getattr(torch, BIT_DTYPES[name])).numpy()
        return Tensor(bits, name)
    return Tensor(plain.numpy(), name)


class FlatCall(nn.Module):
    """A network with positional inputs and a flat tuple of outputs."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network.module
        self.training = network.module.training  # submodules keep their modes
        self._convention = network

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the network and return its outputs in the manifest's order."""
        convention = self._convention
        inputs = dict(zip(convention.keywords, tensors, strict=True))
        positional, named = convention.arguments(inputs)
        outputs = name_outputs(self.network(*positional, **named), convention.declared)
        return tuple(outputs.values())


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested result with their paths."""
    if value is None:
        return
    items = _fields(value)
    if items is None and isinstance(value, tuple | list):
        items = dict(enumerate(value))
    if items is None:
        yield path, value
        return
    for key, item in items.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


def _fields(value: Any) -> Mapping[Any, Any] | None:
    """List the items of a dict or dataclass, None for others."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _describe(inputs: Tensors) -> str:
    """Describe as in ``ids int64 [2, 16], mask bool [2, 16]``."""
    return ", ".join(
        f"{name} {dtype_name(value.dtype)} {list(value.shape)}" for name, value in inputs.items()
    )
