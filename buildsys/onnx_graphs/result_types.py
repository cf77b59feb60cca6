"""Types shared by several result files. Standard library only.

All fields of a result file are optional (``total=False``): older versions wrote fewer of them, and
so do stages that fail or are unavailable.
"""

import math

from buildsys.system.typed_dict import TypedDict

NOT_REQUIRED = "; the metric decides"  # ends a note about errors beyond the limits

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
    policy: str  # the manifest's ``compare``; absent: auto
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
    top1: float
    top5: float
    uninformative: str  # why there are no figures


class WorstElement(TypedDict):
    """The element with the largest difference in a failed comparison."""

    index: list[int] | None
    actual: Value  # NaN and infinity as text
    expected: Value
    problem: str


ComparedCases = dict[str, dict[str, OutputComparison]]  # case -> output


class Doubt(TypedDict):
    """What a passed check could not see."""

    kind: str  # branch | value | state | uncompared | output | weights
    text: str  # a sentence
    place: str  # FILE:LINE of the user's code, or the name of a case, output, tensor; "" if unknown


class ResultHeader(TypedDict, total=False):
    """The fields of every result file, written by ``workers.result_file``."""

    schema: str
    target: str
    stage: str
    model: str
    variant: str
    status: str  # passed | failed | unavailable | noisy
    reason: str  # empty when passed
    hint: str
    started: str  # ISO 8601, UTC
    seconds: float
    peak_rss_mib: float
    doubts: list[Doubt]
    toolchain: dict[str, str]  # library -> version; "name" if it is not the default interpreter


class CheckFailure(TypedDict, total=False):
    """A failed output, case or profile."""

    graph: str
    profile: int
    case: str
    dims: dict[str, int]
    output: str
    index: list[int] | None
    actual: Value
    expected: Value
    problem: str


class CheckResult(ResultHeader, total=False):
    """A result with comparisons against golden outputs."""

    tolerance: dict[str, float | None]
    failures: list[CheckFailure]


def format_beyond(value: float, limit: float) -> str:
    """Format a value with three digits, or as many as show that it is beyond its limit."""
    if not math.isfinite(value):
        return "not finite"
    for digits in range(3, 18):
        text = f"{value:.{digits}g}"
        if (float(text) < limit) if value < limit else (float(text) > limit):
            break
    return text


def format_error(value: float) -> str:
    """Format an error with two digits, rounded up: 5.1e-07."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "not finite"
    exponent = math.floor(math.log10(abs(value)))
    return f"{math.ceil(round(abs(value) / 10.0**exponent * 10, 6)) / 10 * 10.0**exponent:.1e}"
