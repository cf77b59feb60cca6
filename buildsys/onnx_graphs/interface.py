"""The interface of a graph: inputs, outputs and opsets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import ModelProto

from buildsys.onnx_graphs.onnx_file import opsets, ports


def interface(model: ModelProto) -> dict[str, Any]:
    """Return inputs, outputs and opsets, to compare with those of another graph."""
    inputs, outputs = ports(model)
    return {"input": inputs, "output": outputs, "opset": opsets(model)}


def interface_changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield one phrase per change visible to a caller."""
    opset = before["opset"]
    used = {domain: after["opset"].get(domain, version) for domain, version in opset.items()}
    if used != opset:
        yield f"opset {opset} became {used}"
    sizes = (size for port in before["input"] for size in port["shape"] or ())
    named = {size for size in sizes if isinstance(size, str)}
    for side in ("input", "output"):
        names, found = [[port["name"] for port in ends[side]] for ends in (before, after)]
        if names != found:
            yield f"its {side}s {', '.join(names)} became {', '.join(found) or 'none'}"
            return
        for port, other in zip(before[side], after[side], strict=True):
            if port["dtype"] != other["dtype"]:
                yield f"{side} {port['name']} was {port['dtype']} and became {other['dtype']}"
            elif not _same_shape(port["shape"], other["shape"], fixed=side == "input", named=named):
                yield f"{side} {port['name']} was {port['shape']} and became {other['shape']}"


def _same_shape(
    before: list[Any] | None, after: list[Any] | None, *, fixed: bool, named: set[str]
) -> bool:
    """Return True for equal shapes. Unknown sizes may become known.

    A dynamic size of an input, or of an output with the name of an input's dimension, must stay
    dynamic: with the example's batch size baked in, a graph works for that size alone.
    """
    if before is None or after is None:
        return before is after or (before is None and not fixed)
    if len(before) != len(after):
        return False
    for was, now in zip(before, after, strict=True):
        may_become_known = not fixed and not isinstance(was, int) and was not in named
        if was != now and not may_become_known and (isinstance(was, int) or isinstance(now, int)):
            return False
    return True
