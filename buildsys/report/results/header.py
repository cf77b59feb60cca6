"""Types shared by several result files.

All fields of a result file are optional (``total=False``): older versions wrote fewer of them, and
so do stages that fail or are unavailable.
"""

from __future__ import annotations

from buildsys.onnx_graphs.result_types import OutputComparison, Value
from buildsys.system.typed_dict import TypedDict

ComparedCases = dict[str, dict[str, OutputComparison]]  # case -> output


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
    toolchain: dict[str, str]  # library -> version; "name" if it is not the default interpreter


class CheckResult(ResultHeader, total=False):
    """A result with comparisons against golden outputs."""

    tolerance: dict[str, float | None]
    failures: list[CheckFailure]


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
