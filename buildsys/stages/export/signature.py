"""Comparison of an ONNX file with the manifest.

Exporters do not refuse unsupported requests: they leave another opset in the file, write static
shapes for dynamic names they did not understand, and drop names beyond the last output. So the file
is read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import opsets, ports
from buildsys.stages.remedies.remedies import format_remedies, higher_opset_remedies

Declared = Mapping[str, Mapping[str, Any]]  # name -> {shape, dtype} of the manifest
Port = Mapping[str, Any]  # name, dtype and shape in the file


def check_opset(model: onnx.ModelProto, requested: int, exporter: str) -> None:
    """Raise StageError if the file has another opset than the manifest."""
    written = opsets(model).get("ai.onnx", 0)
    if written == requested:
        return
    problem = f"the {exporter} exporter wrote opset {written} instead of {requested}"
    if exporter == "dynamo" and written > requested:
        remedies = higher_opset_remedies(written, requested)
        raise StageError(
            f"{problem}: it cannot convert this network down", format_remedies([("", remedies)])
        )
    raise StageError(problem)


def check_signature(
    model: onnx.ModelProto,
    inputs: Declared,
    outputs: Declared,
    output_names: Sequence[str] | None = None,
) -> None:
    """Compare names, order, dtypes and dimensions of inputs and outputs.

    ``output_names`` are the expected names if ``outputs`` declares none. A named dimension must be
    dynamic in the file; a fixed one may be unknown there, but not different.
    Raises: StageError: lists all differences.
    """
    found_inputs, found_outputs = ports(model)
    problems = [
        *_name_problems("input", found_inputs, list(inputs)),
        *_name_problems("output", found_outputs, list(outputs) or output_names),
        *_port_problems("input", found_inputs, inputs),
        *_port_problems("output", found_outputs, outputs),
    ]
    if problems:
        raise StageError("the ONNX file differs from the manifest: " + "; ".join(problems))


def _name_problems(
    kind: str, found_ports: Sequence[Port], expected: Sequence[str] | None
) -> Iterator[str]:
    found = [port["name"] for port in found_ports]
    if expected is None or found == list(expected):
        return
    missing = [name for name in expected if name not in found]
    if kind == "input" and missing and set(found) < set(expected):
        names = f"input{'s' * (len(missing) > 1)} {', '.join(missing)}"
        verb, pronoun = ("are", "them") if len(missing) > 1 else ("is", "it")
        yield f"{names} {verb} not in the file: forward does not use {pronoun}"
    else:
        yield (
            f"its {kind}s are {', '.join(found) or 'none'},"
            f" the manifest declares {', '.join(expected)}"
        )


def _port_problems(kind: str, found_ports: Sequence[Port], declared: Declared) -> Iterator[str]:
    for port in found_ports:
        if port["name"] not in declared:
            continue
        what, tensor = f"{kind} {port['name']}", declared[port["name"]]
        if tensor["dtype"] not in (None, port["dtype"]):
            yield f"{what} is {port['dtype']}, the manifest declares {tensor['dtype']}"
        if tensor["shape"] is not None and port["shape"] is not None:
            yield from _shape_problems(what, port["shape"], tensor["shape"])


def _shape_problems(
    what: str, found: Sequence[int | str | None], declared: Sequence[Any]
) -> Iterator[str]:
    if len(found) != len(declared):
        yield (
            f"{what} has {len(found)} dimensions {list(found)},"
            f" the manifest declares {len(declared)} {list(declared)}"
        )
        return
    for axis, (size, expected) in enumerate(zip(found, declared, strict=True)):
        if isinstance(expected, str) and isinstance(size, int):
            yield (
                f"{what}: axis {axis} is fixed to {size} in the file,"
                f" the manifest declares the dynamic dimension {expected}"
            )
        elif isinstance(expected, int) and isinstance(size, int) and expected != size:
            yield f"{what}: axis {axis} is {size} in the file, the manifest declares {expected}"
