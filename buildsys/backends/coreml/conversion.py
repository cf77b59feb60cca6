"""The way from a captured program to a Core ML package."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import torch

from buildsys.backends.captured_program import load_captured, one_sentence
from buildsys.backends.coreml.package import block_operations
from buildsys.backends.interface import BuildRequest, UnsupportedNode, raise_refused
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array

_NOT_IN_A_NAME = re.compile(r"\W", re.ASCII)
_POINTS = ("min", "opt", "max")
# calls without a result: assertions about sizes, which ``dims`` of the engine replace
_ASSERTIONS = (
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)


@dataclass(frozen=True)
class Converted:
    """A package in a folder, and what it was made from."""

    package: Path
    program: torch.export.ExportedProgram
    interface: dict[str, Any]  # ports with their names in the package, dims, shapes
    constants: Mapping[str, Array]  # as the converter wrote them


def convert(request: BuildRequest, folder: Path) -> Converted:
    """Return the Core ML package of the captured program, in ``folder``.

    Raises: GraphRefusedError: it has no operator for a node. StageError: the program is refused
    otherwise, or has NaN among its weights.
    """
    request.progress("reading the program")
    program, ports = load_captured(request, "Core ML")
    hint = "another minimum_deployment_target may support it; the log has the complete message"
    with _quiet(), one_sentence(f"model {request.model}: Core ML cannot take the program", hint):
        program = program.run_decompositions({})
        _remove_assertions(program)
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
    return Converted(package, program, interface, dict(_constants(model)))


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
        role: [{**port, "feature": _feature(port["name"], taken)} for port in ports[role]]
        for role in ("inputs", "outputs")
    }
    used = {size for port in ports["inputs"] for size in port["shape"] if isinstance(size, str)}
    spans = {name: request.dims[name] for name in sorted(used)}
    interface["dims"] = {name: {p: span[p] for p in _POINTS} for name, span in spans.items()}
    if request.options["shapes"] == "enumerated":
        points = [{name: span[point] for name, span in spans.items()} for point in _POINTS]
        interface["shapes"] = [p for i, p in enumerate(points) if p not in points[:i]]
    return interface


def _feature(name: str, taken: set[str]) -> str:
    """Return a port's name as a Swift identifier not yet ``taken``."""
    plain = _NOT_IN_A_NAME.sub("_", name)
    plain = f"_{plain}" if plain[:1].isdigit() or not plain else plain
    feature, number = plain, 1
    while feature in taken:
        number += 1
        feature = f"{plain}_{number}"
    taken.add(feature)
    return feature


def sized(shape: Sequence[int | str], sizes: Mapping[str, int]) -> list[int]:
    """Return ``shape`` with the ``sizes`` of its dimensions."""
    return [sizes[size] if isinstance(size, str) else size for size in shape]


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
    for name, tensor in (*program.state_dict.items(), *program.constants.items()):
        if isinstance(tensor, torch.Tensor) and bool(tensor.isnan().any()):
            text = f"the weight {name} of the program has NaN"
            raise StageError(text, "correct the weights of the network")


def _remove_assertions(program: torch.export.ExportedProgram) -> None:
    for node in reversed(program.graph.nodes):
        if node.target in _ASSERTIONS:
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _constants(model: Any) -> Iterator[tuple[str, Array]]:
    """Yield the numeric constants of the converter's own program."""
    for function in model._mil_program.functions.values():
        for operation in block_operations(function):
            value = operation.outputs[0].val if operation.op_type == "const" else None
            if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiu":
                yield operation.outputs[0].name, np.asarray(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the converter from logging about its own code."""
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
