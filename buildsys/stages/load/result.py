"""The result file of the load stage; rates count requests, each of ``batch`` items."""

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class LoadPoint(TypedDict, total=False):
    """Requests at one rate; a latency counts from the scheduled arrival."""

    rate_per_s: float
    requests: int
    served: int
    served_per_s: float
    p50_ms: float
    p99_ms: float  # of an overload a lower bound, which is above the limit
    p99_interval_ms: list[float] | None  # 95 %, over blocks of requests
    service_ms: float  # median time of a call
    lateness_ms: float | None  # 99th percentile of the delay by the sender
    is_overload: bool  # not all requests were served in time
    joules: float | None  # per request, of the whole device


class LoadSetting(TypedDict, total=False):
    """One combination of batch, instances, threads and streams."""

    batch: int
    instances: int
    threads: int | None  # None: the engine has no such field
    streams: int | None
    max_per_s: float  # without breaks between the requests
    points: list[LoadPoint]
    capacity_per_s: float  # largest rate within the limit
    capacity_interval_per_s: list[float | None]  # surely within, surely beyond
    is_least: bool  # even the largest rate is within the limit
    joules: float | None  # per request, at the rate next to the capacity
    is_cut: bool  # its time ended before the search
    others_share: float | None  # the processors' time used by other processes
    noisy: str  # why the capacity is doubtful
    problem: str  # why it was not measured


class LoadResult(ResultHeader, total=False):
    """Settings of an engine under load, the largest throughput first."""

    settings: list[LoadSetting]
    p99_limit_ms: float
    case: str
    cpu: str
    energy: str  # the counter of joules, or why there is none


def setting_text(setting: LoadSetting) -> str:
    """Describe a setting: ``batch 1, 4 instances, 2 threads``."""
    parts = [f"batch {setting['batch']}"]
    for name in ("instances", "threads", "streams"):
        value = setting.get(name)
        parts += [f"{value} {name if value != 1 else name[:-1]}"] if value else []
    return ", ".join(parts)
