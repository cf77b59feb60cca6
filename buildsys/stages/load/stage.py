"""The load stage: latency against throughput of an engine, for each setting of `bench.load`.

A setting is a batch, a number of instances, and threads and streams of the engine. Each is measured
in a fresh process by ``open_loop``, within its share of the budget.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, cast

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import load_case
from buildsys.report.formatting import percent, significant
from buildsys.stages.bench.fresh_process import fresh_processes
from buildsys.stages.load.capacity import LEAST_REQUESTS, find_capacity
from buildsys.stages.load.result import LoadPoint, LoadResult, LoadSetting, setting_text
from buildsys.system.cpu import OtherLoad, cpu_model
from buildsys.workers.job import Job, StageResult

_THREADS, _STREAMS = ("intra_op_threads", "threads"), "streams"  # fields of engines
_OVERTIME_S = 600.0  # loading a large engine, and the last calls
_LATE = 0.1  # of the time of a call
_AGAIN = "`buildsys build --remeasure {}` and nightly runs measure again"


def run(job: Job) -> StageResult:
    """Measure all settings. An engine that cannot run is ``unavailable``."""
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine: see the result of its engine target")
    load, noise = job.options["load"], job.options["noise"]
    axes, own_batch = _batch_axes(job)
    settings = list(_settings(load, job.options["engine"], load["batches"] or [own_batch]))
    figures: LoadResult = {
        "p99_limit_ms": load["p99"] * 1e3,
        "case": job.options["case"],
        "cpu": cpu_model(),
    }
    end, problems = time.monotonic() + load["budget"], []
    with fresh_processes(job, "buildsys.stages.load.open_loop") as ask:
        for number, setting in enumerate(settings):
            text = f"setting {number + 1} of {len(settings)}: {setting_text(setting)}"
            job.progress(text)
            limit_s = max(end - time.monotonic(), 0.0) / (len(settings) - number)
            others = OtherLoad()
            request = _request(job, setting, axes if load["batches"] else {}, limit_s)
            answer = ask(request, limit_s + _OVERTIME_S)
            if "problem" in answer:
                problem, hint = answer["problem"], answer.get("hint", "")
                if answer.get("is_unavailable"):
                    return StageResult("unavailable", problem, hint)
                setting["problem"] = problem
                problems.append(StageError(problem, hint))
                continue
            figures["energy"] = answer.pop("energy")
            setting.update(cast(LoadSetting, {**answer, "others_share": others.share()}))
            _judge(setting, figures["p99_limit_ms"], noise)
    if len(problems) == len(settings):
        raise problems[0]
    settings.sort(key=lambda own: -own["batch"] * own.get("capacity_per_s", -1.0))
    figures["settings"] = settings
    if doubt := settings[0].get("noisy"):
        reason = f"{setting_text(settings[0])}: {doubt}"
        return StageResult("noisy", reason, _AGAIN.format(job.model), figures)
    return StageResult(figures=figures)


def _settings(
    load: Mapping[str, Any], engine: Mapping[str, Any], batches: list[int]
) -> Iterator[LoadSetting]:
    """Yield all combinations of the fields that the engine has."""
    threads = (any(name in engine for name in _THREADS) and load["threads"]) or [None]
    streams = (_STREAMS in engine and load["streams"]) or [None]
    for batch, instances, own_threads, own in product(batches, load["instances"], threads, streams):
        chosen = own or (instances if _STREAMS in engine else None)
        yield {"batch": batch, "instances": instances, "threads": own_threads, "streams": chosen}


def _batch_axes(job: Job) -> tuple[dict[str, list[int]], int]:
    """List the axes with the batch by input, and its size in the case."""
    declared = job.options["inputs"]
    inputs = load_case(job.inputs[f"case.{job.options['case']}"]).inputs
    first = next(iter(declared), "")
    if not first or not declared[first]["shape"]:
        return {}, 1
    dim = declared[first]["shape"][0]
    axes = {
        name: [axis for axis, size in enumerate(tensor["shape"]) if size == dim]
        for name, tensor in declared.items()
    }
    return axes, inputs[first].shape[0]


def _request(
    job: Job, setting: LoadSetting, axes: Mapping[str, list[int]], limit_s: float
) -> dict[str, Any]:
    """Write what ``open_loop`` measures."""
    engine, load = job.options["engine"], job.options["load"]
    chosen = {name: setting["threads"] for name in _THREADS if name in engine}
    chosen |= {_STREAMS: setting["streams"]}
    return {
        "backend": engine["backend"],
        "engine": str(job.inputs["engine"]),
        "project": str(job.project),
        "case": str(job.inputs[f"case.{job.options['case']}"]),
        "axes": axes,
        "batch": setting["batch"],
        "instances": setting["instances"],
        "options": {name: value for name, value in chosen.items() if value is not None},
        "on_gpu": job.options["on_gpu"],
        "rates": load["rates"],
        "duration_s": load["duration"],
        "limit_ms": load["p99"] * 1e3,
        "limit_s": limit_s,
    }


def _judge(setting: LoadSetting, limit_ms: float, noise: Mapping[str, Any] | None) -> None:
    """Add the capacity of a measured setting, and a reason to doubt it."""
    capacity = find_capacity(setting["points"], limit_ms)
    most = setting["max_per_s"]  # a short overload may stay within a long limit
    setting["capacity_per_s"] = min(capacity.rate_per_s, most)
    setting["capacity_interval_per_s"] = [min(capacity.low, most), capacity.high]
    setting["is_least"] = capacity.is_least and capacity.rate_per_s < most
    if capacity.decisive:
        setting["joules"] = capacity.decisive[0]["joules"]
    if noise is not None and (doubt := _doubt(setting, capacity.decisive, noise["other_load"])):
        setting["noisy"] = doubt


def _doubt(setting: LoadSetting, decisive: tuple[LoadPoint, ...], other_load: float | None) -> str:
    if setting["is_cut"]:
        return "its time ended before the search for the capacity: raise bench.load.budget"
    share = setting["others_share"]
    if share is not None and other_load is not None and share > other_load:
        return f"other processes used {percent(share, 0)} of the processors"
    for point in decisive:
        rate, lateness = significant(point["rate_per_s"]), point["lateness_ms"]
        if point["requests"] < LEAST_REQUESTS:
            return f"{point['requests']} requests at {rate} per second: raise bench.load.duration"
        if lateness is not None and lateness > _LATE * point["service_ms"]:
            late, service = significant(lateness), significant(point["service_ms"])
            return (
                f"at {rate} per second requests were sent {late} ms late, a call takes {service} ms"
            )
    return ""
