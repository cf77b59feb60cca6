"""Compare an ONNX file with what the manifest says about it.

Exporters do not refuse what they cannot do: one leaves another opset in the file, one writes static shapes
where a dynamic name was not understood, names beyond the last output are dropped. So everything is read back.
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


def check_opset(model: onnx.ModelProto, asked: int, exporter: str) -> None:
    """Raise StageError where the file has another opset than the manifest."""
    written = opsets(model).get("ai.onnx", 0)
    if written == asked:
        return
    if exporter == "dynamo" and written > asked:
        raise StageError(
            f"the dynamo exporter wrote opset {written} where {asked} was asked: it cannot convert this network down",
            format_remedies([("", higher_opset_remedies(written, asked))]),
        )
    raise StageError(f"the {exporter} exporter wrote opset {written} where {asked} was asked")


def check_signature(
    model: onnx.ModelProto,
    inputs: Declared,
    outputs: Declared,
    output_names: Sequence[str] | None = None,
) -> None:
    """Compare names, order, dtypes and dimensions of the graph's inputs and outputs with the manifest.

    ``output_names`` are the names to expect where ``outputs`` declares none. A named dimension must be dynamic in
    the file; a fixed one may be unknown there, but not different.
    Raises: StageError: lists everything that differs.
    """
    found_inputs, found_outputs = ports(model)
    problems = [
        *_name_problems("input", found_inputs, list(inputs)),
        *_name_problems("output", found_outputs, list(outputs) or output_names),
        *_port_problems("input", found_inputs, inputs),
        *_port_problems("output", found_outputs, outputs),
    ]
    if problems:
        raise StageError("the ONNX file is not what the manifest declares: " + "; ".join(problems))


def _name_problems(
    kind: str, found_ports: Sequence[Port], expected: Sequence[str] | None
) -> Iterator[str]:
    found = [port["name"] for port in found_ports]
    if expected is None or found == list(expected):
        return
    missing = [name for name in expected if name not in found]
    if kind == "input" and missing and set(found) < set(expected):
        yield f"{_are(missing)} not in the file: forward does not use {'it' if len(missing) == 1 else 'them'}"
    else:
        yield f"its {kind}s are {', '.join(found) or 'none'}, declared are {', '.join(expected)}"


def _port_problems(kind: str, found_ports: Sequence[Port], declared: Declared) -> Iterator[str]:
    for port in found_ports:
        if port["name"] not in declared:
            continue
        what, tensor = f"{kind} {port['name']}", declared[port["name"]]
        if tensor["dtype"] not in (None, port["dtype"]):
            yield f"{what} is {port['dtype']}, declared is {tensor['dtype']}"
        if tensor["shape"] is not None and port["shape"] is not None:
            yield from _shape_problems(what, port["shape"], tensor["shape"])


def _shape_problems(
    what: str, found: Sequence[int | str | None], declared: Sequence[Any]
) -> Iterator[str]:
    if len(found) != len(declared):
        yield f"{what} has {len(found)} dimensions {list(found)}, declared are {len(declared)} {list(declared)}"
        return
    for axis, (size, wanted) in enumerate(zip(found, declared, strict=True)):
        if isinstance(wanted, str) and isinstance(size, int):
            yield f"{what}: axis {axis} is fixed to {size} in the file, declared is the dynamic dimension {wanted}"
        elif isinstance(wanted, int) and isinstance(size, int) and wanted != size:
            yield f"{what}: axis {axis} is {size} in the file, declared is {wanted}"


def _are(inputs: Sequence[str]) -> str:
    plural = len(inputs) > 1
    return f"input{'s' if plural else ''} {', '.join(inputs)} {'are' if plural else 'is'}"
