"""Which kind of worker server runs a job, and what that server has loaded before it forks.

A server pays for its imports once. Two kinds, because torch is 700 MB and seconds that most stages
have no use for. What is preloaded must not start threads that hold locks (a fork copies the locks, not
the threads): of all this only OpenBLAS starts threads, and it stops and restarts them around a fork.
"""

from __future__ import annotations

from dataclasses import dataclass

from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job


@dataclass(frozen=True)
class Profile:
    """One kind of server."""

    name: str
    preload: tuple[
        str, ...
    ] = ()  # the first one must load; a later one that is not installed is left out
    without: tuple[str, ...] = ()  # made to look not installed while the others load


TORCH = Profile(
    "torch",
    preload=("torch", "torchvision", "onnx", "onnxscript", "torch.onnx._internal.exporter._core"),
)
LIGHT = Profile(
    "light",
    preload=("numpy", "ml_dtypes", "onnx", "onnxruntime", "onnxsim", "tensorrt_rtx"),
    without=(
        "torch",
    ),  # onnxsim takes torch along where it finds it (1.6 s, 580 MB) and needs it nowhere here
)
BARE = Profile("bare")
# only numpy: a library that crashes or hangs when it is loaded does that in the child that asks for it
_ELSEWHERE = ("numpy",)

_BESIDE = frozenset({"bench"})  # stages that use a toolchain and run here
_TORCH_CONVERTERS = ("autocast", "modelopt")  # ModelOpt imports it
_TORCH_STAGES = frozenset({"export", "reference"})
# loaded by the first dynamo export; 0.3 s of each later one
_DYNAMO = (
    "torch.export._trace",
    "torch._functorch.aot_autograd",
    "onnxscript.function_libs.torch_lib.ops",
)


def toolchain_of(job: Job) -> Toolchain | None:
    """Return the toolchain whose interpreter runs ``job``; None for our own."""
    return None if job.stage in _BESIDE else job.toolchain


def profile_of(job: Job) -> Profile:
    """Return the kind of server that ``job`` runs in. A stage given as a module path gets a bare one."""
    toolchain = toolchain_of(job)
    if toolchain is not None:
        return Profile(f"toolchain-{toolchain.name}", preload=_ELSEWHERE)
    if "." in job.stage:
        return BARE
    if job.stage == "bench":
        return TORCH if "network" in job.options else LIGHT
    if job.stage == "convert":
        tool = job.options.get("quantize", job.options).get("tool")
        return TORCH if tool in _TORCH_CONVERTERS else LIGHT
    with_torch = job.stage in _TORCH_STAGES and "onnx" not in job.options["source"]
    return TORCH if with_torch else LIGHT


def late_preload(job: Job) -> tuple[str, ...]:
    """Return the modules that the server loads once a job like this one comes."""
    dynamo = job.stage == "export" and job.options.get("export", {}).get("exporter") == "dynamo"
    return _DYNAMO if dynamo else ()
