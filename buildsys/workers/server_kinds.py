"""Kinds of worker servers: the libraries each one imports before it forks.

A server pays for its imports once. There are two main kinds because torch takes seconds and
700 MB, and most stages do not need it. Preloaded libraries must not start threads that hold locks,
as a fork copies the locks but not the threads. Only OpenBLAS starts threads at import; it stops
and restarts them around a fork.
"""

from __future__ import annotations

from dataclasses import dataclass

from buildsys.system.backend_registry import describe_backend, our_backends
from buildsys.workers.job import Job


@dataclass(frozen=True)
class ServerKind:
    """One kind of server."""

    name: str
    preload: tuple[str, ...] = ()  # the first must be importable, the others may be missing
    without: tuple[str, ...] = ()  # modules that look missing during the preload


TORCH = ServerKind(
    "torch",
    preload=("torch", "torchvision", "onnx", "onnxscript", "torch.onnx._internal.exporter._core"),
)
LIGHT = ServerKind(
    "light",
    preload=(
        *("numpy", "ml_dtypes", "onnx", "onnxruntime", "onnxsim"),
        *("tensorrt_rtx", "cuda.bindings.driver"),
    ),
    # onnxsim imports them if installed and never needs them here: torch takes 1.6 s and 580 MB,
    # sympy half of the remaining second
    without=("torch", "sympy"),
)
BARE = ServerKind("bare")

_TOOLCHAIN_PRELOAD = ("numpy",)  # an engine library may crash or hang: only its child imports it
_KINDS = {kind.name: kind for kind in (BARE, LIGHT, TORCH)}


def server_kind_of(job: Job) -> ServerKind:
    """Choose the kind of server for ``job``."""
    if job.runs_in is not None:
        return ServerKind(f"toolchain-{job.runs_in.name}", preload=_TOOLCHAIN_PRELOAD)
    return _KINDS[job.server]


def late_preload(job: Job) -> tuple[str, ...]:
    """List modules to import into the server at the first such job.

    Importing the module of a stage or of a backend takes 10 to 50 ms.
    """
    stage = () if "." in job.stage else (f"buildsys.stages.{job.stage}.stage",)
    return (*stage, *_backend_module(job), *job.preload)


def _backend_module(job: Job) -> tuple[str, ...]:
    """Name the module of one of our backends whose libraries are preloaded."""
    name = job.options.get("engine", {}).get("backend")
    if name not in our_backends():
        return ()
    missing = describe_backend(name).libraries.keys() - set(server_kind_of(job).preload)
    return () if missing else (f"buildsys.backends.{name}.backend",)
