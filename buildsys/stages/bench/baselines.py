"""Baselines of a benchmark: PyTorch in three forms and ONNX Runtime.

They run on the engine's kind of device. A baseline that cannot run here is left out with its
reason; a baseline that rejects the inputs fails the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from buildsys.backends.interface import load_backend
from buildsys.backends.measurement import Contender, GpuTiming, LocalCall
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Tensor, load_case
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job

Inputs = Mapping[str, Tensor]
Bind = Callable[[Inputs], Contender]  # called once per case
ONNXRUNTIME = "onnxruntime"


@dataclass
class Baselines:
    """Running baselines, and the reasons of those left out."""

    running: dict[str, Bind] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # how they run

    def bind(self, engine_case: Path, network_case: Path) -> dict[str, Contender]:
        """Bind a contender per baseline.

        After surgery, the network's inputs differ from the engine's.
        """
        contenders: dict[str, Contender] = {}
        for name in tuple(self.running):
            case = engine_case if name == ONNXRUNTIME else network_case
            try:
                contenders[name] = self.running[name](load_case(case).inputs)
            except Unavailable as reason:
                del self.running[name]
                self.left_out[name] = str(reason)
        return contenders


@contextmanager
def open_baselines(
    job: Job, threads: int, kind: str, timing: GpuTiming | None
) -> Iterator[Baselines]:
    """Yield a bench job's baselines on the CPU or GPU (``kind``)."""
    asked, baselines = job.options["bench"]["baselines"], Baselines()
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
                if timing is not None and timing.transfers != "none":
                    raise Unavailable(
                        "it keeps inputs and outputs on the device, and transfers are timed"
                    )
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
