"""The way from a captured program to a Core ML package, and checks of the result."""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights

from buildsys.backends.captured_program import load_captured, one_sentence
from buildsys.backends.coreml.description import DTYPES
from buildsys.backends.coreml.package import Package, block_operations, operations, sized
from buildsys.backends.interface import BuildRequest, Figures, UnsupportedNode, raise_refused
from buildsys.backends.layer_figures import layer_facts
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

# of a Swift identifier, the name of a port in the package
_NOT_IN_A_NAME, _WITHOUT_START = re.compile(r"\W", re.ASCII), re.compile(r"^(?=\d|$)")
_POINTS = ("min", "opt", "max")
_INFINITE = 1e38  # coremltools makes larger numbers infinite in fp16
# calls without a result: assertions about sizes, which ``dims`` of the engine replace
_ASSERTIONS = (
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)


@dataclass(frozen=True)
class ConvertedPackage:
    """A package in a folder, and what it was made from."""

    package: Path
    program: torch.export.ExportedProgram
    interface: dict[str, Any]  # ports with their names in the package, dims, shapes
    constants: Mapping[str, Array]  # as the converter wrote them


def convert(request: BuildRequest, folder: Path) -> ConvertedPackage:
    """Return the Core ML package of the captured program, in ``folder``."""
    request.progress("reading the program")
    program, ports = load_captured(request, "Core ML")
    hint = "another minimum_deployment_target may support it; the log has the complete message"
    logging.getLogger("coremltools").setLevel(logging.ERROR)  # it logs about its own code
    with one_sentence(f"model {request.model}: Core ML cannot take the program", hint):
        program = program.run_decompositions({})
        for node in reversed(program.graph.nodes):
            if node.target in _ASSERTIONS:
                program.graph.erase_node(node)
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
        if nodes := unsupported_nodes(program):
            raise_refused(request, "Core ML", nodes)
        _check_weights(program)
        request.progress("converting the program")
        interface = interface_of(ports, request)
        options = request.options
        half = options["precision"] == "fp16"
        model = ct.convert(
            program,
            inputs=[_tensor_type(port, interface) for port in interface["inputs"]],
            outputs=[
                ct.TensorType(name=port["feature"], dtype=_numpy_type(port["dtype"]))
                for port in interface["outputs"]
            ],
            convert_to="mlprogram",
            compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
            minimum_deployment_target=getattr(ct.target, options["minimum_deployment_target"]),
            skip_model_load=True,
        )
        request.progress("writing the package")
        package = folder / f"{request.model}.mlpackage"
        model.save(str(package))
    return ConvertedPackage(package, program, interface, dict(_constants(model)))


def unsupported_nodes(program: torch.export.ExportedProgram) -> list[UnsupportedNode]:
    """List the nodes without an operator of Core ML."""
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY

    nodes = []
    for index, node in enumerate(program.graph.nodes):
        if node.op != "call_function":
            continue
        target: Any = node.target
        kind = target.name() if hasattr(target, "name") else target.__name__
        if _TORCH_OPS_REGISTRY.get_func(kind) is None:
            reason = f"coremltools {ct.__version__} has no conversion for this operator"
            nodes.append(UnsupportedNode(index, node.name, kind, reason))
    return nodes


def interface_of(ports: Mapping[str, Any], request: BuildRequest) -> dict[str, Any]:
    """Describe inputs and outputs: names in the package, ranges, shapes."""
    taken: set[str] = set()
    interface: dict[str, Any] = {
        role: [{**port, "feature": _new_identifier(port["name"], taken)} for port in ports[role]]
        for role in ("inputs", "outputs")
    }
    used = {size for port in ports["inputs"] for size in port["shape"] if isinstance(size, str)}
    spans = {name: request.dims[name] for name in sorted(used)}
    interface["dims"] = {name: {p: span[p] for p in _POINTS} for name, span in spans.items()}
    if request.options["shapes"] == "enumerated":
        points = [{name: span[point] for name, span in spans.items()} for point in _POINTS]
        interface["shapes"] = [p for i, p in enumerate(points) if p not in points[:i]]
    return interface


def _new_identifier(name: str, taken: set[str]) -> str:
    """Make a Swift identifier of a port's name that is not yet ``taken``."""
    plain = _WITHOUT_START.sub("_", _NOT_IN_A_NAME.sub("_", name))
    candidates = chain([plain], (f"{plain}_{number}" for number in count(2)))
    identifier = next(candidate for candidate in candidates if candidate not in taken)
    taken.add(identifier)
    return identifier


def _tensor_type(port: Mapping[str, Any], interface: Mapping[str, Any]) -> ct.TensorType:
    shape: Any = port["shape"]
    if any(isinstance(size, str) for size in shape):
        dims = interface["dims"]
        opt = {name: span["opt"] for name, span in dims.items()}
        if "shapes" in interface:
            shapes = [sized(shape, sizes) for sizes in interface["shapes"]]
            shape = ct.EnumeratedShapes(shapes, default=sized(shape, opt))
        else:
            ranges = {
                name: ct.RangeDim(span["min"], span["max"], span["opt"], symbol=name)
                for name, span in dims.items()
                if span["min"] < span["max"]
            }
            shape = ct.Shape([ranges.get(size) or sized([size], opt)[0] for size in shape])
    return ct.TensorType(name=port["feature"], shape=shape, dtype=_numpy_type(port["dtype"]))


def _numpy_type(dtype: str) -> Any:
    return np.dtype("int32" if dtype in ("int64", "bool") else dtype).type


def _check_weights(program: torch.export.ExportedProgram) -> None:
    """Check that all weights are numbers, parameters also finite; a buffer may be a mask."""
    parameters = program.graph_signature.inputs_to_parameters.values()
    for name, tensor in {**program.state_dict, **program.constants}.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            has_infinity = name in parameters and bool((tensor.abs() >= _INFINITE).any())
            if has_infinity or bool(tensor.isnan().any()):
                content = f"a value of {_INFINITE:g} or more" if has_infinity else "NaN"
                text = f"the weight {name} of the program has {content}"
                raise StageError(text, "correct the weights of the network")


def _constants(model: Any) -> Iterator[tuple[str, Array]]:
    """Yield the numeric constants of the converter's own program."""
    for function in model._mil_program.functions.values():
        for operation in block_operations(function):
            value = operation.outputs[0].val if operation.op_type == "const" else None
            if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiu":
                yield operation.outputs[0].name, np.asarray(value)


_RELATIVE = {"fp32": 1e-5, "fp16": 2.0**-10}  # relative to the largest weight of its channel
_SUBNORMAL = {"fp32": 1e-12, "fp16": 2.0**-24}
_ROUNDED = "_to_fp16"  # what the converter appends to a parameter's name
_CONVOLUTIONS = ("aten.convolution.default", "aten.conv1d.default", "aten.conv2d.default",
                 "aten.conv3d.default")  # fmt: skip
_NORM = "aten._native_batch_norm_legit_no_training.default"
_WITHOUT_NUMBERS = ("const", "cast", "reshape", "shape", "transpose", "expand_dims", "squeeze")
_REPAIR = "build it again; if that fails, install another version of coremltools"


def check_interface(package: Package, interface: Mapping[str, Any]) -> None:
    """Compare names and types of inputs and outputs between package and manifest."""
    from coremltools.proto.FeatureTypes_pb2 import ArrayFeatureType

    description = package.spec.description
    for role, features in (("inputs", description.input), ("outputs", description.output)):
        ports = {
            feature.name: ArrayFeatureType.ArrayDataType.Name(feature.type.multiArrayType.dataType)
            for feature in features
        }
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

    names = {MIL_pb2.FLOAT16: "float16", MIL_pb2.FLOAT32: "float32"}
    kinds, types = [], []
    for operation in operations(package.spec):
        kind = operation.type.rpartition(".")[2]
        if kind == "const":
            continue
        kinds.append(kind)
        outputs = (output.type.tensorType.dataType for output in operation.outputs)
        dtypes = {names[dtype] for dtype in outputs if dtype in names}
        if dtypes and kind not in _WITHOUT_NUMBERS:
            types.append(max(dtypes))  # float32, if one is
    return layer_facts(kinds, types, "network")


def compare_weights(converted: ConvertedPackage, precision: str) -> Figures:
    """Compare the converter's weights with the program's.

    Parameters may have been folded into others: a batch norm into its convolution is computed
    here as well, anything else is named in the result.
    """
    parameters = dict(_parameters(converted.program))
    by_shape: dict[tuple[int, ...], list[Array]] = {}
    for array in (*parameters.values(), *_folded_convolutions(converted.program, parameters)):
        for candidate in (array, array.T) if array.ndim == 2 else (array,):
            by_shape.setdefault(candidate.shape, []).append(candidate)
    compared, computed = 0, list[str]()
    for name, weight in converted.constants.items():
        if np.isnan(weight).any():  # folded of numbers, such as of a negative variance
            text = f"the weight {name} that coremltools computed has NaN"
            raise StageError(text, "correct the weights of the network")
        if weight.dtype.kind != "f" or weight.size == 1:
            continue
        if any(_close(weight, other, precision) for other in by_shape.get(weight.shape, ())):
            compared += 1
            continue
        computed.append(name)
        parameter = parameters.get(name.removesuffix(_ROUNDED))
        if parameter is not None and parameter.shape == weight.shape:
            worst = float(np.abs(weight.astype(np.float32) - parameter).max())
            problem = f"the weight {name} of the package differs from the program's"
            hint = "use precision: fp32" if precision == "fp16" else _REPAIR
            raise StageError(f"{problem}: they differ by up to {worst:.3g}", hint)
    return {
        "count": len(converted.constants),
        "bytes": sum(weight.nbytes for weight in converted.constants.values()),
        "compared": compared,
        **({"computed": computed[:100]} if computed else {}),
    }


def _close(weight: Array, expected: Array, precision: str) -> bool:
    if not np.isclose(float(weight.flat[0]), float(expected.flat[0]), rtol=1e-2, atol=1e-3):
        return False  # without reading all values
    values = np.asarray(weight, np.float32)
    axes = tuple(range(1, values.ndim))
    with np.errstate(invalid="ignore"):
        finite = np.where(np.isfinite(expected), np.abs(expected), 0.0)
        largest = finite.max(axis=axes, keepdims=True, initial=0.0) if values.ndim else finite
        error = np.abs(values - expected)
    limit = _RELATIVE[precision] * np.broadcast_to(largest, values.shape) + _SUBNORMAL[precision]
    return bool(((error <= limit) | (values == expected)).all())


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

    def tensor(node: Any) -> Any:
        array = values.get(getattr(node, "name", ""))
        return None if array is None else torch.from_numpy(array)

    for norm in program.graph.nodes:
        conv: Any = norm.args[0] if str(norm.target) == _NORM else None
        if str(getattr(conv, "target", "")) not in _CONVOLUTIONS:
            continue
        weight, bias = tensor(conv.args[1]), tensor([*conv.args, None][2])
        scale, shift, mean, variance = map(tensor, norm.args[1:5])
        if weight is None or mean is None or variance is None:
            continue
        is_transposed = "convolution" in str(conv.target) and bool(conv.args[6])
        folded = fuse_conv_bn_weights(
            weight, bias, mean, variance, float(norm.args[-1]), scale, shift, is_transposed
        )
        yield from (part.detach().numpy() for part in folded)
