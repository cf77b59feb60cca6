"""Types of the facts about graphs and tensors in result files; standard library only."""

from __future__ import annotations

from typing import TypedDict

Value = float | int | bool | str | None


class TensorPort(TypedDict):
    """An input or output of a graph."""

    name: str
    dtype: str
    shape: list[int | str | None] | None  # a size, the name of a dynamic dimension, None: unknown


class GraphSummary(TypedDict):
    """The size of an ONNX graph."""

    nodes: int
    operators: dict[str, int]  # by falling count
    bytes: int  # with external data


class OutputComparison(TypedDict):
    """One output compared with its reference; None stands for NaN, infinity and "not defined"."""

    max_abs: float | None
    relative: float | None
    cosine: float | None
    top1: float | None
    passed: bool


class WorstElement(TypedDict):
    """The element with the largest difference of a comparison that did not pass."""

    index: list[int] | None
    actual: Value  # NaN and infinity as text
    expected: Value
    problem: str
