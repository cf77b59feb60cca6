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
    "buildsys.backends.operator_support.parsed_torchlib",
)
_FUNCTIONS = ("onnxscript",)  # of local functions; with sympy, 0.8 s
_BENCH = ("numpy.ma",)  # imported by the first quantile
_REPORT = ("buildsys.manifest.schema.engine_base",)  # with pydantic, for the defaults of engines


def toolchain_of(job: Job) -> Toolchain | None:
    """Return the toolchain to run ``job``. None for the default interpreter."""
    return None if job.stage in (*DEFAULT_INTERPRETER_STAGES, _COMMAND) else job.toolchain


def server_kind_of(job: Job) -> ServerKind:
    """Return the kind of server for ``job``.

    A stage given as a module path gets a bare one.
    """
    toolchain = toolchain_of(job)
    if toolchain is not None:
        return ServerKind(f"toolchain-{toolchain.name}", preload=_TOOLCHAIN_PRELOAD)
    if job.stage == _LABELS:
        return TORCH
    if job.stage == _COMMAND or ("." in job.stage and job.stage != _STRESS):
        return BARE
    if job.stage == "bench":
        return TORCH if "network" in job.options else LIGHT
    if job.stage == "convert":
        tool = job.options.get("quantize", job.options).get("tool")
        return TORCH if tool in _TORCH_CONVERTERS else LIGHT
    if job.stage in ("engine", "verify"):
        libraries = describe_backend(job.options["engine"]["backend"]).libraries
        return TORCH if "torch" in libraries else LIGHT
    needs_torch = job.stage in _TORCH_STAGES and not job.options["source"].keys() & _WITHOUT_TORCH
    return TORCH if needs_torch else LIGHT


def late_preload(job: Job) -> tuple[str, ...]:
    """Return modules to import into the server at the first such job.

    Importing the module of a stage takes 10 to 50 ms.
    """
    stage = () if "." in job.stage else (f"buildsys.stages.{job.stage}.stage",)
    dynamo = job.stage == "program" or (
        job.stage == "export" and job.options.get("export", {}).get("exporter") == "dynamo"
    )
    functions = _FUNCTIONS if job.stage == "operators" and job.options.get("functions") else ()
    bench = _BENCH if job.stage == "bench" else ()
    report = _REPORT if job.stage == "report" and _shows_defaults(job) else ()
    dynamos = _DYNAMO if dynamo else ()
    return (*stage, *_backend_module(job), *dynamos, *functions, *bench, *report)


def _shows_defaults(job: Job) -> bool:
    """Return True if an engine's default options are known to pydantic only."""
    engines = job.options["manifest"].get("engines", ())
    return any(describe_backend(engine["backend"]).defaults is None for engine in engines)


def _backend_module(job: Job) -> tuple[str, ...]:
    """Return the module of one of our backends whose libraries are preloaded."""
    name = job.options["engine"]["backend"] if job.stage in _ENGINE_STAGES else None
    if name not in our_backends():
        return ()
    missing = describe_backend(name).libraries.keys() - set(server_kind_of(job).preload)
    return () if missing else (f"buildsys.backends.{name}.backend",)
