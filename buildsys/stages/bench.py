"""Measure the latency of an engine beside its baselines, in turns, in one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from buildsys.backends import load_backend
from buildsys.backends.base import Options, Run
from buildsys.errors import Unavailable
from buildsys.interleaving import Pace, measure
from buildsys.latency import summarize
from buildsys.machine import OtherLoad, cpu_model, load_average, usable_cores
from buildsys.operators.implementation import implementation_of
from buildsys.tensors import Tensor, load_case
from buildsys.worker.job import Job, StageResult

_NOISY_VARIATION = 0.15  # a quiet machine shows up to 0.09 with two threads, one busy neighbour 0.2 and more
_NOISY_OTHERS = 0.1  # share of all processors
Inputs = Mapping[str, Tensor]
Binder = Callable[[Inputs], Run]  # from inputs to a call that only computes
Figures = dict[str, Any]


def run(job: Job) -> StageResult:
    """Time every case. ``unavailable`` where the engine cannot run, since a baseline alone says nothing."""
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine to measure: see the result of the engine target")
    if job.toolchain is not None:
        sentence = (
            f"the engine belongs to the toolchain {job.toolchain.name}, and engines of toolchains are not timed yet"
        )
        return StageResult("unavailable", sentence, "take `toolchain` out of the engine to time it here")
    options = job.options["engine"]
    threads = int(options.get("intra_op_threads") or usable_cores())
    try:
        backend = load_backend(options["backend"])
        uses = implementation_of(job, options["backend"]).uses
        session = backend.load(job.inputs["engine"], options, uses)
    except Unavailable as reason:
        return StageResult("unavailable", reason.problem, reason.hint)
    with ExitStack() as stack:
        stack.callback(backend.unload, session)
        binders: dict[str, Binder] = {"engine": session.bind}
        device = backend.device(options)
        if "network" in job.options and "torch" in job.options["bench"]["baselines"]:
            job.progress("making the PyTorch baseline")
            binders["torch"] = stack.enter_context(_torch_baseline(job, threads, device["kind"]))
        return StageResult(figures=_figures(job, binders, {**_settings(options, threads, device), **_surgery(job)}))


def _figures(job: Job, binders: Mapping[str, Binder], settings: Figures) -> Figures:
    bench = job.options["bench"]
    pace = Pace(bench["duration"], bench["warmup"], bench["min_samples"])
    before, others = load_average(), OtherLoad()
    cases = {}
    for name, dims in job.options["cases"].items():
        job.progress(f"case {name}")
        cases[name] = {"dims": dict(dims), **_measure_case(_inputs(job, name, binders), binders, pace)}
    share = others.share()
    return {
        "cases": cases,
        "settings": settings,
        "interleaving": _interleaving(binders, pace),
        "cpu": cpu_model(),
        "load": {"average_before": before, "average_after": load_average(), "others_share": share},
        "noisy": list(_noise(cases, share)),
    }


def _inputs(job: Job, case: str, binders: Mapping[str, Binder]) -> dict[str, Inputs]:
    """Return contender -> inputs: the network has its own where surgery has changed those of the engine."""
    inputs = load_case(job.inputs[f"case.{case}"]).inputs
    own = job.inputs.get(f"network.case.{case}")
    return {name: load_case(own).inputs if own and name == "torch" else inputs for name in binders}


def _measure_case(inputs: Mapping[str, Inputs], binders: Mapping[str, Binder], pace: Pace) -> Figures:
    samples = measure({name: bind(inputs[name]) for name, bind in binders.items()}, pace)
    batch = _batch(inputs["engine"])
    contenders = {name: summarize(taken, batch) for name, taken in samples.items()}
    speedup = contenders["torch"]["p50_ms"] / contenders["engine"]["p50_ms"] if "torch" in contenders else None
    return {"batch": batch, "contenders": contenders, "speedup": speedup}


def _batch(inputs: Inputs) -> int:
    """Return the size of the first input's first axis; 1 for a model without inputs or with a scalar."""
    first = next(iter(inputs.values()), None)
    return first.shape[0] if first is not None and first.shape else 1


@contextmanager
def _torch_baseline(job: Job, threads: int, kind: str) -> Iterator[Binder]:
    """Yield what binds inputs to the eager PyTorch network, on the engine's kind of device."""
    import torch

    from buildsys.network.calling import make_network
    from buildsys.network.dtypes import to_torch

    network = make_network(job.options["network"], job.project)
    on_gpu = kind == "gpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    module = network.module.to(device)

    def bind(inputs: Inputs) -> Run:
        tensors = {name: to_torch(tensor).to(device) for name, tensor in inputs.items()}
        network.result(tensors)  # wrong inputs are explained here
        positional, named = network.arguments(tensors)

        def call() -> None:
            module(*positional, **named)
            if on_gpu:
                torch.cuda.synchronize()

        return call

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield bind
    finally:
        torch.set_num_threads(before)


def _settings(options: Options, threads: int, device: Figures) -> Figures:
    return {
        "threads": threads,
        "device": device,
        "malloc": " ".join(f"{name}={os.environ[name]}" for name in sorted(os.environ) if name.startswith("MALLOC_")),
        "inputs": "on the device before the clock starts; outputs stay there",
        **({"spinning": options["spinning"]} if "spinning" in options else {}),
    }


def _surgery(job: Job) -> Figures:
    """Say what the baseline is where surgery has changed the engine's inputs or outputs."""
    changed = any(role.startswith("network.case.") for role in job.inputs)
    return {"torch": "is the network from before surgery, with its own inputs"} if changed else {}


def _interleaving(binders: Mapping[str, Binder], pace: Pace) -> str:
    if len(binders) == 1:
        return f"one contender, blocks of {pace.block_s * 1000:.0f} ms without a break"
    return (
        f"{' and '.join(binders)} take turns of at least {pace.block_s * 1000:.0f} ms and {pace.block_runs} calls,"
        " the order reversed every round;"
        f" the first {pace.settle_s * 1000:.0f} ms and {pace.settle_runs} calls of a turn do not count"
    )


def _noise(cases: Mapping[str, Figures], others_share: float | None) -> Iterator[str]:
    """Say what makes the figures doubtful."""
    for case, figures in cases.items():
        for name, contender in figures["contenders"].items():
            if contender["variation"] > _NOISY_VARIATION:
                yield f"{name}, case {case}: the latencies vary by {contender['variation']:.0%} of their mean"
    if others_share is not None and others_share > _NOISY_OTHERS:
        yield f"other processes used {others_share:.0%} of the processors meanwhile"
