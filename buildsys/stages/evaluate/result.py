"""The result file of the evaluate stage."""

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class FlippedSample(TypedDict, total=False):
    """A sample that the engine and the original model predict differently."""

    sample: str  # file, row or number
    label: str
    original: str
    engine: str
    change: float  # of its error; positive is worse


class ClassAccuracy(TypedDict, total=False):
    """The metric of one class."""

    name: str
    samples: int
    original: float | None
    engine: float | None


class EvaluateResult(ResultHeader, total=False):
    """The metric of an engine, and its loss with a 95 % interval."""

    title: str  # of the metric
    is_share: bool
    higher_is_better: bool
    identity: str  # digest of samples and metric; equal ones are comparable
    value: float
    original: float
    loss: float  # against the original; a gain is negative
    low: float
    high: float
    drop: float  # the largest allowed loss
    verdict: str  # passed | failed | undecided
    samples: int
    needed: int  # samples for a verdict, if undecided
    deviation: float  # of the loss of a sample
    method: str  # of the interval
    weight: float  # samples per one that counts in full
    flips: list[FlippedSample]
    classes: list[ClassAccuracy]
