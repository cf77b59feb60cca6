"""Kinds of worker servers: the libraries each one imports before it forks.

A server pays for its imports once. There are two main kinds because torch takes seconds and
700 MB, and most stages do not need it. Preloaded libraries must not start threads that hold locks,
as a fork copies the locks but not the threads. Only OpenBLAS starts threads at import; it stops
and restarts them around a fork.
"""

from __future__ import annotations

from dataclasses import dataclass

from buildsys.system.backend_registry import describe_backend, our_backends
from buildsys.system.interpreters.toolchain import Toolchain
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
# they use a toolchain through a subprocess
DEFAULT_INTERPRETER_STAGES = frozenset({"bench", "gate"})
_COMMAND = "command"  # starts its program itself
_TORCH_CONVERTERS = ("autocast", "modelopt")  # ModelOpt imports torch
_STRESS = "buildsys.stages.validate.stress"
_LABELS = "buildsys.stages.run.labels"  # imports torchvision
_TORCH_STAGES = frozenset({"export", "program", "reference", _STRESS})
_ENGINE_STAGES = frozenset({"engine", "verify", "bench"})
_WITHOUT_TORCH = {"onnx", "numpy"}  # kinds of sources
# imported by the first dynamo export; saves 1.0 s of each later one
_DYNAMO = (
    "torch.export._trace",
    "torch._functorch.aot_autograd",
    "onnxscript.function_libs.torch_lib.ops",
    "buildsys.backends.parsed_torchlib",
)


def toolchain_of(job: Job) -> Toolchain | None:
    """Return the toolchain to run ``job``. None for the default interpreter."""
    return None if job.stage in (*DEFAULT_INTERPRETER_STAGES, _COMMAND) else job.toolchain


def server_kind_of(job: Job) -> ServerKind:
    """Choose the kind of server for ``job``: a bare one for the module of another package."""
    toolchain, stage, options = toolchain_of(job), job.stage, job.options
    if toolchain is not None:
        return ServerKind(f"toolchain-{toolchain.name}", preload=_TOOLCHAIN_PRELOAD)
    if stage == _COMMAND or ("." in stage and stage not in (_STRESS, _LABELS)):
        return BARE
    if stage == "convert":
        needs_torch = options.get("quantize", options).get("tool") in _TORCH_CONVERTERS
    elif stage in ("engine", "verify"):
        needs_torch = "torch" in describe_backend(options["engine"]["backend"]).libraries
    elif stage in _TORCH_STAGES:
        needs_torch = not options["source"].keys() & _WITHOUT_TORCH
    else:
        needs_torch = stage == _LABELS or (stage == "bench" and "network" in options)
    return TORCH if needs_torch else LIGHT


def late_preload(job: Job) -> tuple[str, ...]:
    """List modules to import into the server at the first such job.

    Importing the module of a stage or of a backend takes 10 to 50 ms.
    """
    stage = () if "." in job.stage else (f"buildsys.stages.{job.stage}.stage",)
    dynamo = job.stage == "program" or (
        job.stage == "export" and job.options.get("export", {}).get("exporter") == "dynamo"
    )
    return (*stage, *_backend_module(job), *(_DYNAMO if dynamo else ()))


def _backend_module(job: Job) -> tuple[str, ...]:
    """Return the module of one of our backends whose libraries are preloaded."""
    name = job.options["engine"]["backend"] if job.stage in _ENGINE_STAGES else None
    if name not in our_backends():
        return ()
    missing = describe_backend(name).libraries.keys() - set(server_kind_of(job).preload)
    return () if missing else (f"buildsys.backends.{name}.backend",)
