"""Measure the latency of an engine beside its baselines, in turns, in one run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from buildsys.backends.interface import Options
from buildsys.backends.measurement.contenders import Pace, Samples, measure
from buildsys.backends.measurement.gpu import ENGINE, ENGINE_CUDA_GRAPH, GpuTiming
from buildsys.errors import Unavailable
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.bench.baselines import Baselines, opened_baselines
from buildsys.stages.bench.latency import summarize, summarize_gpu
from buildsys.stages.bench.local_engine import LocalEngine, TimedEngine
from buildsys.stages.bench.noise import noise
from buildsys.stages.bench.remote_engine import PeerEngine
from buildsys.stages.operators.implementation import implementation_of
from buildsys.system.cpu import OtherLoad, cpu_model, load_average, usable_cores
from buildsys.system.gpus.sampling import sampled
from buildsys.workers.job import Job, StageResult

Figures = dict[str, Any]
_MALLOC = ("MALLOC_", "GLIBC_TUNABLES")


def run(job: Job) -> StageResult:
    """Time every case. ``unavailable`` where the engine cannot run, since a baseline alone says nothing."""
    if "engine" not in job.inputs:
        return StageResult(
            "unavailable", "there is no engine to measure: see the result of the engine target"
        )
    options = job.options["engine"]
    threads, timing = int(options.get("intra_op_threads") or usable_cores()), _timing(job)
    try:
        engine = _load(job)
    except Unavailable as reason:
        return StageResult("unavailable", reason.problem, reason.hint)
    try:
        with opened_baselines(job, threads, engine.device["kind"], timing) as baselines:
            settings = {**_settings(options, threads, engine.device, timing), **_surgery(job)}
            figures = _figures(job, engine, baselines, timing)
            settings.update(baselines.settings)
            versions = {"engine_toolchain": dict(engine.versions)} if engine.versions else {}
            left_out = {"left_out": baselines.left_out} if baselines.left_out else {}
            return StageResult(figures={**figures, "settings": settings, **left_out, **versions})
    finally:
        engine.close()


def _load(job: Job) -> TimedEngine:
    """Return the engine, in a process of its toolchain where it has one."""
    options, toolchain = job.options["engine"], job.toolchain
    uses = implementation_of(job, options["backend"]).uses
    if toolchain is None:
        return LocalEngine(options["backend"], job.inputs["engine"], options, uses)
    folder = job.outputs["result"].parent
    job.progress(f"loading the engine in the toolchain {toolchain.name}")
    return PeerEngine(
        toolchain,
        options["backend"],
        job.inputs["engine"],
        options,
        uses,
        project=job.project,
        folder=folder,
    )


def _timing(job: Job) -> GpuTiming | None:
    """Return how an engine on a GPU is timed, None for one on a CPU."""
    asked = job.options["bench"].get("gpu")
    return (
        None if asked is None else GpuTiming(**{**asked, "cuda_graph": tuple(asked["cuda_graph"])})
    )


def _figures(
    job: Job, engine: TimedEngine, baselines: Baselines, timing: GpuTiming | None
) -> Figures:
    bench = job.options["bench"]
    pace = Pace(bench["duration"], bench["warmup"], bench["min_samples"])
    before, others = load_average(), OtherLoad(engine.processes)
    cases: dict[str, Figures] = {}
    for name, dims in job.options["cases"].items():
        job.progress(f"case {name}")
        cases[name] = {
            "dims": dict(dims),
            **_measure_case(job, name, engine, baselines, timing, pace),
        }
    share = others.share()
    contenders = list(dict.fromkeys(name for case in cases.values() for name in case["contenders"]))
    return {
        "cases": cases,
        "interleaving": _interleaving(contenders, pace, timing),
        "cpu": cpu_model(),
        "load": {"average_before": before, "average_after": load_average(), "others_share": share},
        "noisy": list(noise(cases, share)),
    }


def _measure_case(
    job: Job,
    case: str,
    engine: TimedEngine,
    baselines: Baselines,
    timing: GpuTiming | None,
    pace: Pace,
) -> Figures:
    golden = job.inputs[f"case.{case}"]
    contenders = engine.bind(golden, timing)
    contenders |= baselines.bind(golden, job.inputs.get(f"network.case.{case}", golden))
    facts = engine.facts()
    with _readings(facts.pop("pci_bus_id", "")) as gpu:
        samples = measure(contenders, pace)
    batch = _batch(job, case)
    figures = {name: _summary(taken, batch) for name, taken in samples.items()}
    figures[next(iter(figures))].update(facts)
    return {"batch": batch, "contenders": figures, "speedup": _speedup(figures), **gpu}


@contextmanager
def _readings(pci_bus_id: str) -> Iterator[Figures]:
    """Yield a map that has the readings of a GPU after the block; it stays empty without one."""
    figures: Figures = {}
    if not pci_bus_id:
        yield figures
        return
    with sampled(pci_bus_id) as readings:
        yield figures
    figures["gpu"] = readings.figures()


def _summary(samples: Samples, batch: int) -> Figures:
    return summarize_gpu(samples, batch) if samples.gpu_ns else summarize(samples.wall_ns, batch)


def _speedup(contenders: Mapping[str, Figures]) -> float | None:
    """Return how many times as long as the engine eager PyTorch takes."""
    own = next(
        figures for name, figures in contenders.items() if name in (ENGINE, ENGINE_CUDA_GRAPH)
    )
    speedup: float | None = (
        contenders["torch"]["p50_ms"] / own["p50_ms"] if "torch" in contenders else None
    )
    return speedup


def _batch(job: Job, case: str) -> int:
    """Return the size of the first input's first axis; 1 for a model without inputs or with a scalar."""
    first = next(iter(load_case(job.inputs[f"case.{case}"]).inputs.values()), None)
    return first.shape[0] if first is not None and first.shape else 1


def _settings(options: Options, threads: int, device: Figures, timing: GpuTiming | None) -> Figures:
    gpu = (
        {}
        if timing is None
        else {"transfers": timing.transfers, "in_flight": timing.in_flight, "wait": timing.wait}
    )
    return {
        "threads": threads,
        "device": device,
        "malloc": " ".join(
            f"{name}={value}"
            for name, value in sorted(os.environ.items())
            if name.startswith(_MALLOC)
        ),
        "inputs": _where_inputs_lie(timing),
        **gpu,
        **({"spinning": options["spinning"]} if "spinning" in options else {}),
    }


def _where_inputs_lie(timing: GpuTiming | None) -> str:
    pinned = "page-locked memory of the host"
    inputs = (
        f"come from {pinned}"
        if timing and timing.copies_in
        else "on the device before the clock starts"
    )
    outputs = f"go to {pinned}" if timing and timing.copies_out else "stay there"
    return f"{inputs}; outputs {outputs}"


def _surgery(job: Job) -> Figures:
    """Say what the baseline is where surgery has changed the engine's inputs or outputs."""
    changed = any(role.startswith("network.case.") for role in job.inputs)
    return {"torch": "is the network from before surgery, with its own inputs"} if changed else {}


def _interleaving(contenders: Sequence[str], pace: Pace, timing: GpuTiming | None) -> str:
    if len(contenders) == 1:
        turns = f"one contender, blocks of {pace.block_s * 1000:.0f} ms without a break"
    else:
        names = " and ".join(contenders)
        turns = (
            f"{names} take turns of at least {pace.block_s * 1000:.0f} ms and {pace.block_runs} calls,"
            " the order reversed every round;"
            f" the first {pace.settle_s * 1000:.0f} ms and {pace.settle_runs} calls of a turn do not count"
        )
    if timing is None or timing.in_flight > 1:
        return turns
    return (
        f"{turns}; on the GPU half of a turn goes to inferences one at a time, by the host's clock,"
        " and half to inferences queued one behind the other, by the GPU's"
    )
