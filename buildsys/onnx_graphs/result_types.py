"""Types of facts about graphs and tensors. Standard library only."""

from __future__ import annotations

from buildsys.system.typed_dict import TypedDict

Value = float | int | bool | str | None


class TensorPort(TypedDict):
    """An input or output of a graph."""

    name: str
    dtype: str
    shape: list[int | str | None] | None  # a size, the name of a dynamic dimension, None: unknown


class GraphSummary(TypedDict, total=False):
    """The size of an ONNX graph."""

    nodes: int
    operators: dict[str, int]  # by falling count
    bytes: int  # with external data


class OutputComparison(TypedDict, total=False):
    """One compared output. None stands for NaN, infinity and "not defined"."""

    max_abs: float | None
    relative: float | None
    cosine: float | None
    top1: float | None
    passed: bool | None  # None: uninformative
    policy: str  # of the manifest's ``compare``; absent: auto
    note: str  # a permitted difference, or errors that the limits cannot see
    uninformative: str  # why equality proves nothing


class _SampleCount(TypedDict):
    samples: int


class AgreementFigures(_SampleCount, total=False):
    """How an output follows its reference over the samples of all cases."""

    spread_error: float
    correlation: float
    slope: float
    channel_error: float
    class_agreement: float
    uninformative: str  # why there are no figures


class WorstElement(TypedDict):
    """The element with the largest difference in a failed comparison."""

    index: list[int] | None
    actual: Value  # NaN and infinity as text
    expected: Value
    problem: str
