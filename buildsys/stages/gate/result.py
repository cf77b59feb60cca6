"""The result file of the gate stage."""

from typing import Any

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict

INCOMPARABLE = "not comparable"
RISES = ("throughput",)  # figures of which more is better


class GateCheck(TypedDict, total=False):
    """One figure against its limit or baseline, in seconds or bytes."""

    metric: str
    status: str  # passed | failed | noisy | not comparable
    before: float | None  # None: compared with an absolute limit only
    after: float | None
    change: float | None  # relative; positive is worse
    low: float | None  # interval of the change
    high: float | None
    confidence: float | None
    tolerance: float | None
    limit: float | None
    text: str


class GateResult(ResultHeader, total=False):
    """Figures of an engine against those of its baseline."""

    baseline: dict[str, Any]  # description, digest of the engine, start, method, accepted
    checks: list[GateCheck]
    figures: dict[str, float]  # for comparisons with later builds
    evaluated: str  # identity of the samples and the metric
    engine_options: dict[str, Any]  # as this build ran
    rounds: dict[str, dict[str, list[float]]]  # side -> figure -> one value per round
    load: dict[str, Any]
