"""Checks of a finished package's inputs, outputs and weights, on any platform."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from buildsys.backends.coreml.conversion import Converted
from buildsys.backends.coreml.description import DTYPES
from buildsys.backends.coreml.package import Package, operations
from buildsys.backends.interface import Figures
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

_RELATIVE = {"fp32": 1e-5, "fp16": 2.0**-10}  # relative to the largest weight of its channel
_SUBNORMAL = {"fp32": 1e-12, "fp16": 2.0**-24}
_ROUNDED = "_to_fp16"  # what the converter appends to a parameter's name
_CONVOLUTIONS = ("aten.convolution.default", "aten.conv1d.default", "aten.conv2d.default",
                 "aten.conv3d.default")  # fmt: skip
_NORM = "aten._native_batch_norm_legit_no_training.default"
_WITHOUT_NUMBERS = ("const", "cast", "reshape", "shape", "transpose", "expand_dims", "squeeze")
_REPAIR = "build it again; if that fails, install another version of coremltools"


def check_interface(package: Package, interface: Mapping[str, Any]) -> None:
    """Compare names and types of a package's inputs and outputs with those of the manifest.

    Raises: StageError: they differ.
    """
    description = package.spec.description
    for role, features in (("inputs", description.input), ("outputs", description.output)):
        arrays = [feature.type.multiArrayType for feature in features]
        types = [
            type(array).DESCRIPTOR.enum_types_by_name["ArrayDataType"].values_by_number[
                array.dataType
            ].name
            for array in arrays
        ]  # fmt: skip
        ports = dict(zip((feature.name for feature in features), types, strict=True))
        expected = {
            port["feature"]: DTYPES["int32" if port["dtype"] == "bool" else port["dtype"]]
            for port in interface[role]
        }
        if ports != expected:
            text = f"the package has the {role} {ports} instead of {expected}"
            raise StageError(text, _REPAIR)


def operator_facts(package: Package) -> Figures:
    """Collect the operators of a package and the types of their results."""
    from coremltools.proto import MIL_pb2

    kinds, types = Counter[str](), Counter[str]()
    names = {MIL_pb2.FLOAT16: "float16", MIL_pb2.FLOAT32: "float32"}
    for operation in operations(package.spec):
        kind = operation.type.rpartition(".")[2]
        if kind == "const":
            continue
        kinds[kind] += 1
        outputs = (output.type.tensorType.dataType for output in operation.outputs)
        dtypes = {names[dtype] for dtype in outputs if dtype in names}
        if dtypes and kind not in _WITHOUT_NUMBERS:
            types["float32" if "float32" in dtypes else "float16"] += 1
    facts: Figures = {"engine_layers": dict(kinds.most_common())}
    if total := types.total():
        shares = {name: round(count / total, 4) for name, count in types.most_common()}
        facts |= {"precision_shares": {"layers": shares}, "precision_of": "network"}
    return facts


def compare_weights(converted: Converted, precision: str) -> Figures:
    """Compare the converter's weights with those of the program.

    Parameters may have been folded into others: a batch norm into its convolution is computed
    here as well, anything else is named in the result.
    Raises: StageError: a weight differs or is not finite.
    """
    parameters = dict(_parameters(converted.program))
    by_shape: dict[tuple[int, ...], list[Array]] = {}
    for array in (*parameters.values(), *_folded_convolutions(converted.program, parameters)):
        for candidate in (array, array.T) if array.ndim == 2 else (array,):
            by_shape.setdefault(candidate.shape, []).append(candidate)
    compared, computed = 0, list[str]()
    for name, weight in converted.constants.items():
        if weight.dtype.kind != "f" or weight.size == 1:
            continue
        if np.isnan(weight).any():
            raise StageError(f"the weight {name} of the package has NaN", _REPAIR)
        if any(
            _close(weight, candidate, precision) for candidate in by_shape.get(weight.shape, ())
        ):
            compared += 1
            continue
        computed.append(name)
        parameter = parameters.get(name.removesuffix(_ROUNDED))
        if parameter is not None and parameter.shape == weight.shape:
            worst = float(np.abs(weight.astype(np.float32) - parameter).max())
            raise StageError(
                f"the weight {name} of the package is not that of the program: they differ by up to"
                f" {worst:.3g}",
                "use precision: fp32" if precision == "fp16" else _REPAIR,
            )
    return {
        "count": len(converted.constants),
        "bytes": sum(weight.nbytes for weight in converted.constants.values()),
        "compared": compared,
        **({"computed": computed[:100]} if computed else {}),
    }


def _close(weight: Array, expected: Array, precision: str) -> bool:
    if not np.isclose(*_first(weight, expected), rtol=1e-2, atol=1e-3):
        return False  # without reading all values
    values = np.asarray(weight, np.float32)
    axes = tuple(range(1, values.ndim))
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(expected), np.abs(expected), 0.0)
        largest = finite.max(axis=axes, keepdims=True, initial=0.0) if values.ndim else finite
        error = np.abs(values - expected)
    limit = _RELATIVE[precision] * np.broadcast_to(largest, values.shape) + _SUBNORMAL[precision]
    return bool(((error <= limit) | (values == expected)).all())


def _first(values: Array, expected: Array) -> tuple[float, float]:
    return float(values.flat[0]), float(expected.flat[0])


def _parameters(program: torch.export.ExportedProgram) -> Iterator[tuple[str, Array]]:
    """Yield floating parameters, buffers and constants by name."""
    signature = program.graph_signature
    origins = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    for name, origin in origins.items():
        tensor = program.state_dict.get(origin, program.constants.get(origin))
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            yield name, tensor.detach().float().numpy()


def _folded_convolutions(
    program: torch.export.ExportedProgram, values: Mapping[str, Array]
) -> Iterator[Array]:
    """Yield weights and biases of convolutions with the batch norms after them."""

    def value(node: Any) -> Array | None:
        return values.get(node.name) if isinstance(node, torch.fx.Node) else None

    for norm in program.graph.nodes:
        if str(norm.target) != _NORM or not isinstance(norm.args[0], torch.fx.Node):
            continue
        conv = norm.args[0]
        if str(conv.target) not in _CONVOLUTIONS:
            continue
        scale, shift, mean, variance = (value(argument) for argument in norm.args[1:5])
        weight = value(conv.args[1])
        is_transposed = "convolution" in str(conv.target) and bool(conv.args[6])
        if weight is None or mean is None or variance is None or is_transposed:
            continue
        epsilon = float(norm.args[-1])
        factor = (1.0 if scale is None else scale) / np.sqrt(variance + epsilon)
        bias = value(conv.args[2]) if len(conv.args) > 2 else None
        yield weight * factor.reshape(-1, *(1,) * (weight.ndim - 1))
        centered = (0.0 if bias is None else bias) - mean
        yield centered * factor + (0.0 if shift is None else shift)
