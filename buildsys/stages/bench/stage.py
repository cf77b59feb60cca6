"""The bench stage: an engine and its baselines in alternating blocks.

The baselines, PyTorch in three forms and ONNX Runtime, run on the engine's kind of device. A
baseline that cannot run here is left out with its reason; one that rejects the inputs fails the
benchmark.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from buildsys.backends.interface import load_backend
from buildsys.backends.measurement import Contender, GpuTiming, LocalCall, Pace, measure
from buildsys.errors import StageError, Unavailable
from buildsys.manifest.default_limits import effective_limits
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.onnx_graphs.tensors import Tensor, load_case, load_tensors
from buildsys.report.formatting import duration
from buildsys.stages.bench.cold_start import measure_cold_starts
from buildsys.stages.bench.latency import (
    disturbances,
    mark_noisy,
    mark_noisy_starts,
    noise,
    summarize,
)
from buildsys.stages.bench.machine import measure_machine
from buildsys.stages.bench.result import BenchCase, BenchResult, ContenderResult, engine_contender
from buildsys.stages.bench.timed_engine import LocalEngine, RemoteEngine, open_engine
from buildsys.stages.engine.result import SlowLayer
from buildsys.stages.operators.implementation import implementation_of
from buildsys.system.cpu import OtherLoad, cpu_model, usable_cores
from buildsys.system.devices import sampled
from buildsys.system.processes import raised_after
from buildsys.workers.job import Job, StageResult

Inputs = Mapping[str, Tensor]
Bind = Callable[[Inputs], Contender]  # called once per case
ONNXRUNTIME = "onnxruntime"
_COMPILED = ("torch_compile", "torch_tensorrt")
_CAPTURED = "torch_cuda_graph"
_CAPTURE_S = 10.0  # for a capture, even if compilers used up all the time


class _OutOfTimeError(BaseException):
    """The end of a baseline's time; libraries catch an Exception."""


@dataclass
class Baselines:
    """Running baselines, and the reasons of those left out."""

    running: dict[str, Bind] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # how they run

    def bind(self, engine_case: Path, network_case: Path, limit_s: float) -> dict[str, Contender]:
        """Bind a contender per baseline, within ``limit_s``: compilers take minutes.

        After surgery, the network's inputs differ from the engine's.
        """
        contenders: dict[str, Contender] = {}
        deadline = time.monotonic() + limit_s
        late = _OutOfTimeError(
            f"the {duration(limit_s)} to prepare baselines are used up: raise bench.budget"
        )
        # torch.compile (2.11) breaks graphs of 3-D convolutions that were captured before it
        for name in sorted(self.running, key=lambda name: (name == _CAPTURED, name in _COMPILED)):
            case = engine_case if name == ONNXRUNTIME else network_case
            left_s = deadline - time.monotonic()
            if name == _CAPTURED:
                left_s = max(left_s, _CAPTURE_S)
            try:
                with raised_after(left_s, late):
                    contenders[name] = self.running[name](load_case(case).inputs)
            except (Unavailable, _OutOfTimeError) as reason:
                del self.running[name]
                self.left_out[name] = str(reason)
        return contenders


@contextmanager
def open_baselines(
    job: Job, threads: int, kind: str, timing: GpuTiming | None
) -> Iterator[Baselines]:
    """Yield a bench job's baselines on the CPU or GPU (``kind``)."""
    asked, baselines = job.options["bench"]["baselines"], Baselines()
    if timing is not None and timing.transfers != "none":
        reason = "it keeps inputs and outputs on the device, and transfers are timed"
        yield Baselines(left_out=dict.fromkeys(asked, reason))
        return
    with ExitStack() as stack:
        of_torch = [name for name in asked if name != ONNXRUNTIME]
        if of_torch and "network" in job.options:
            job.progress("making the PyTorch baseline")
            from buildsys.stages.bench.torch_baseline import TorchNetwork  # imports torch

            try:
                network = TorchNetwork(job, kind, timing)
            except Unavailable as reason:
                baselines.left_out.update(dict.fromkeys(of_torch, str(reason)))
            else:
                stack.enter_context(network.activate(threads))
                baselines.running.update({name: network.form(name) for name in of_torch})
                if kind == "gpu":
                    baselines.settings["torch"] = network.describe()
        if ONNXRUNTIME in asked:
            job.progress("making the ONNX Runtime baseline")
            try:
                load_backend(ONNXRUNTIME)  # or it says what is missing
                from buildsys.backends.onnxruntime.backend import load_graph

                # custom operators belong to one backend
                own = job.options["engine"]["backend"] == ONNXRUNTIME
                uses = implementation_of(job).uses if own else ()
                provider = "cuda" if kind == "gpu" else "cpu"
                session = load_graph(job.inputs["model"], provider, threads, uses)
                stack.callback(session.close)
                baselines.running[ONNXRUNTIME] = lambda inputs: LocalCall(session.bind(inputs))
            except StageError as reason:
                baselines.left_out[ONNXRUNTIME] = str(reason)
        yield baselines


TimedEngine = LocalEngine | RemoteEngine
# the case whose layers are timed, and whose outputs are compared; without it, the first
_MAIN_CASE = "opt"
_CHANGES_HINT = "the engine draws random numbers or keeps state: correct its custom operators"


def run(job: Job) -> StageResult:
    """Time every case. An engine that cannot run is ``unavailable``."""
    if "engine" not in job.inputs:
        return StageResult("unavailable", "there is no engine: see the result of its engine target")
    options, gpu = job.options["engine"], job.options["bench"].get("gpu")
    threads = int(options.get("intra_op_threads") or options.get("threads") or usable_cores())
    timing = GpuTiming(**{**gpu, "cuda_graph": tuple(gpu["cuda_graph"])}) if gpu else None
    try:
        engine = open_engine(job)
    except Unavailable as reason:
        return StageResult("unavailable", reason.problem, reason.hint)
    try:
        cases = job.options["cases"]
        case = _MAIN_CASE if _MAIN_CASE in cases else next(iter(cases), "")
        first_outputs = _outputs(job, engine, case)
        with open_baselines(job, threads, engine.device["kind"], timing) as baselines:
            figures = _measure(job, engine, baselines, timing)
            figures["settings"] = _settings(job, threads, engine.device, timing)
            figures["settings"] |= baselines.settings
            if baselines.left_out:
                figures["left_out"] = baselines.left_out
        if changed := _changed_output(job, case, first_outputs, _outputs(job, engine, case)):
            problem = f"case {case}: between the first and the last call, {changed}"
            return StageResult("failed", problem, _CHANGES_HINT, figures)
        # profiling slows a session down, so it gets a separate one after the timing
        job.progress("timing the engine's layers")
        with suppress(StageError):  # a benchmark is complete without them
            layers = engine.slowest_layers(job.inputs[f"case.{case}"])
            figures |= {"slowest_layers": cast(list[SlowLayer], layers)} if layers else {}
    finally:
        engine.close()
    job.progress("measuring the machine")
    kind = engine.device["kind"]
    figures["machine"] = measure_machine(kind, options, threads, job.options["bench"])
    if job.options["bench"]["cold_start"]:
        inputs = job.inputs[f"case.{case}"]
        figures["cold_start"] = measure_cold_starts(job, inputs, on_gpu=kind == "gpu")
        mark_noisy_starts(figures["cold_start"])
    reasons = figures["noisy"]
    if not reasons:
        return StageResult(figures=figures)
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    hint = f"`buildsys build --remeasure {job.model}` and nightly runs measure again"
    return StageResult("noisy", f"{reasons[0]}{more}", f"{hint}; limits: bench.noise", figures)


def _outputs(job: Job, engine: TimedEngine, case: str) -> Mapping[str, Tensor]:
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        file = Path(folder) / "outputs.npz"
        engine.save_outputs(job.inputs[f"case.{case}"], file)
        return load_tensors(file)


def _changed_output(
    job: Job, case: str, first: Mapping[str, Tensor], last: Mapping[str, Tensor]
) -> str:
    """Describe the first output that differs, "" if all agree.

    The limits are the usual ones of verify: other limits must not measure again.
    """
    golden = load_case(job.inputs[f"case.{case}"])
    precision = job.options["engine"]["precision"]
    limits = effective_limits({}, precision, golden.float_type)
    compared = compare_outputs(last, first, limits, inputs=golden.inputs)
    for output, comparison in compared.items():
        if not comparison.passed:
            difference = comparison.sentence("the last call", "the first")
            return f"output '{output}' changes: {difference}"
    return ""


def _measure(
    job: Job, engine: TimedEngine, baselines: Baselines, timing: GpuTiming | None
) -> BenchResult:
    """Time every case, again within its share of the budget while its figures are noisy.

    A share is an equal part and what earlier cases have left; half of it may prepare baselines.
    """
    bench = job.options["bench"]
    block_s = min(Pace.block_s, bench["duration"])
    pace = Pace(bench["duration"], bench["warmup"], bench["min_samples"], block_s)
    others = OtherLoad(engine.processes)
    asked, left_s = job.options["cases"], 0.0
    cases: dict[str, BenchCase] = {}
    for case, dims in asked.items():
        attempts: list[BenchCase] = []
        share_s = left_s + bench["budget"] / len(asked)
        end = time.monotonic() + share_s
        while True:
            begun = time.monotonic()
            golden = job.inputs[f"case.{case}"]
            bound = engine.bind(golden, timing)
            network_case = job.inputs.get(f"network.case.{case}", golden)
            bound |= baselines.bind(golden, network_case, share_s / 2)
            limit_s = max(end - time.monotonic(), share_s / 2)
            again = ""
            if attempts:
                rest = f"{end - begun:.0f} s of {share_s:.0f} s left"
                again = f", attempt {len(attempts) + 1}, {rest}: {attempts[-1]['noisy'][0]}"
            job.progress(f"timing case {case}{again}")
            limited = replace(pace, limit_s=limit_s)
            attempts.append(_measure_case(job, case, engine, bound, limited))
            left_s, taken_s = max(end - time.monotonic(), 0.0), time.monotonic() - begun
            if not attempts[-1]["noisy"] or taken_s > left_s:
                break
        steadiest = min(attempts, key=lambda attempt: len(attempt["noisy"]))
        cases[case] = {"dims": dict(dims), **steadiest, "attempts": len(attempts)}
    contenders = dict.fromkeys(name for case in cases.values() for name in case["contenders"])
    return {
        "cases": cases,
        "interleaving": (
            f"{', '.join(contenders)} in turns of at least {pace.block_s * 1000:.0f} ms and"
            f" {pace.block_runs} calls, the order reversed every round"
        ),
        "cpu": cpu_model(),
        "load": {"others_share": others.share(), "exclusive": [*job.exclusive]},
        "noisy": [reason for case in cases.values() for reason in case["noisy"]],
    }


def _measure_case(
    job: Job, case: str, engine: TimedEngine, contenders: Mapping[str, Contender], pace: Pace
) -> BenchCase:
    facts = engine.facts()
    pci_bus_id = facts.pop("pci_bus_id", "")
    others = OtherLoad(engine.processes)
    with sampled(pci_bus_id) if pci_bus_id else nullcontext() as readings:
        blocks = measure(contenders, pace, job.count)
    others_share = others.share()
    first = next(iter(load_case(job.inputs[f"case.{case}"]).inputs.values()), None)
    batch = first.shape[0] if first is not None and first.shape else 1
    figures: dict[str, ContenderResult] = {
        name: summarize(taken, batch) for name, taken in blocks.items()
    }
    figures[next(iter(figures))].update(cast(ContenderResult, facts))
    limits = job.options["bench"]["noise"]
    measured: BenchCase = {"batch": batch, "contenders": figures, "others_share": others_share}
    taken_s = min(
        sum(block.elapsed_ns + block.queued_ns for block in own) / 1e9 for own in blocks.values()
    )
    if taken_s < pace.duration_s:
        measured["cut_to_s"] = taken_s
    if readings is not None:
        measured["gpu"] = readings.figures()
    measured["noisy"] = list(noise(case, measured, limits)) if limits else []
    mark_noisy(figures, limits, next(disturbances(case, measured, limits), "") if limits else "")
    measured["speedup"] = _speedup(figures)
    return measured


def _speedup(contenders: Mapping[str, ContenderResult]) -> float | None:
    """Divide the medians of eager PyTorch and the engine, if both are steady."""
    torch, engine = contenders.get("torch"), contenders[engine_contender(contenders)]
    if torch is None or "noisy" in torch or "noisy" in engine:
        return None
    return torch["p50_ms"] / engine["p50_ms"]


def _settings(
    job: Job, threads: int, device: dict[str, Any], timing: GpuTiming | None
) -> dict[str, Any]:
    settings: dict[str, Any] = {"threads": threads, "device": device}
    if timing is not None:
        settings |= {name: getattr(timing, name) for name in ("transfers", "in_flight", "wait")}
    if "spinning" in job.options["engine"]:
        settings["spinning"] = job.options["engine"]["spinning"]
    if any(role.startswith("network.case.") for role in job.inputs):
        settings["torch"] = "is the network before surgery, with its own inputs"
    return settings
