"""Networks with named inputs and outputs, as declared in a manifest.

Inputs go to ``forward`` in the manifest's order, those with ``keyword`` by that keyword, or as
``call`` arranges them: a string is the name of an input, ``{tuple: […]}`` a tuple and
``{text: …}`` a string.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.models.outputs import Declared, check_output, name_outputs
from buildsys.models.random_weights import measuring_layers
from buildsys.models.sources.source_module import GPU, make_module, needs_gpu
from buildsys.models.user_code import reraise_as_stage_error
from buildsys.onnx_graphs.tensors import BIT_DTYPES, NATIVE_DTYPES, Array, Tensor, tensor_of

_QUANTIZER = re.compile(r"FakeQuant|\b(fake_)?quantize_(per|affine)")
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
    declared: Declared  # outputs; empty: as forward returns
    project: Path
    weights: str  # their origin, for the report
    call: Mapping[str, Any] | None = None  # the manifest's section
    on_gpu: bool = False
    missing: Sequence[str] = ()  # tensors that the file of weights lacks

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
        outputs = name_outputs(result, self.declared, torch.Tensor, "forward")
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
    if made.program and not options.get("call") and len(made.program) != len(keywords):
        raise StageError(
            f"{options['source']['exported_program']} has the inputs {', '.join(made.program)},"
            f" the manifest declares {', '.join(keywords)}",
            "declare the inputs of the program, in its order",
        )
    network = Network(
        made.module,
        keywords,
        options["outputs"],
        project,
        made.weights,
        options.get("call"),
        on_gpu=needs_gpu(options["source"]),
        missing=made.file.missing if made.file else (),
    )
    if made.needs_forward:
        with torch.no_grad(), measuring_layers(made.module, options["source"]["seed"]):
            network.result(example_inputs(options, project))
    elif any(map(is_lazy, made.module.parameters())):  # the first call decides the shapes
        with torch.no_grad():
            network.result(example_inputs(options, project))
    return network


def main_float_type(module: nn.Module) -> str:
    """Find the float type of most weights, int8 if values are quantized; empty without weights."""
    for layer in module.modules():
        nodes = layer.graph.nodes if isinstance(layer, fx.GraphModule) else ()
        if any(map(_QUANTIZER.search, (type(layer).__name__, *(str(n.target) for n in nodes)))):
            return "int8"
    counts: Counter[str] = Counter()
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            counts[dtype_name(tensor.dtype)] += tensor.numel()
    return max(counts, key=counts.__getitem__, default="")


def table_rows(module: nn.Module) -> set[int]:
    """List the sizes of tables that forward may read by index.

    They are embeddings, and parameters of layers outside PyTorch.
    """
    rows = set[int]()
    for layer in module.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            rows.add(layer.num_embeddings)
        elif not type(layer).__module__.startswith("torch.nn."):
            own = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
            rows |= {int(tensor.shape[0]) for tensor in own if tensor.ndim}
    return rows


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


def check_outputs(outputs: Tensors, declared: Declared, dims: Mapping[str, int]) -> None:
    """Compare dtypes and shapes with the declared ones. Raises: StageError: one differs."""
    for name, output in declared.items():
        tensor = outputs[name]
        check_output(name, dtype_name(tensor.dtype), tensor.shape, output, dims)


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
    """Convert a torch tensor to a numpy one. Raises: StageError: the tensor is not dense."""
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
        result = self.network(*positional, **named)
        return tuple(name_outputs(result, convention.declared, torch.Tensor, "forward").values())


def _describe(inputs: Tensors) -> str:
    """Describe as in ``ids int64 [2, 16], mask bool [2, 16]``."""
    return ", ".join(
        f"{name} {dtype_name(value.dtype)} {list(value.shape)}" for name, value in inputs.items()
    )
