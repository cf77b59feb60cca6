"""A stage's job and its result, the kinds of worker servers, and the messages between processes.

Standard library only: every toolchain imports this. A server pays for its imports once. There are
two main kinds because torch takes seconds and 700 MB, and most stages do not need it. Preloaded
libraries must not start threads that hold locks, as a fork copies the locks but not the threads.
Only OpenBLAS starts threads at import; it stops and restarts them around a fork.

A server listens at a socket. Every run holds one silent connection, which keeps the server alive,
and opens a further one per job. It sends the request there as one line,
``{"job", "log", "debugger", "timeout_s", "preload", "environment", "idle_s"}``, with the
descriptors of the terminal for a job in the foreground. All answers are lines, too:

- of the child: ``{"event": "started", "pid"}``, any number of ``{"event": "progress", "message"}``
  and ``{"event": "count", "done", "total", "unit"}``, then ``{"event": "result", …}`` or
  ``{"event": "error", "error"}``;
- of the server: ``{"event": "exit", …}`` after the child ended, or an error if none was forked.

End of file means that the other process is gone or no longer wants the result.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from buildsys.errors import BuildsysError, CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.system.toolchains import Toolchain

RESULT_SCHEMA = "buildsys/result/1"
MAX_READS = 50_000  # recorded per run, in and outside the key; more cannot be followed
Message = dict[str, Any]
RETIRE = b"retire\n"  # instead of a request: end after the runs that are connected
TERMINAL = (0, 1, 2)  # descriptors of a job in the foreground
INTERRUPTED = 130  # exit code of a stage in the foreground after Ctrl-C
_PATHS = ("inputs", "outputs", "advisory")  # fields with paths by role
_LOCAL = ("progress", "count", "fail")
_ERRORS = {kind.__name__: kind for kind in (StageError, CheckFailed, Unavailable, WorkerDied)}


def _raise(error: BuildsysError) -> NoReturn:
    raise error


@dataclass(frozen=True)
class Job:
    """One stage to run. All paths are absolute.

    Outputs are in a temporary folder that the executor publishes. A stage may write further files
    next to them (external data, failing tensors); the executor records all files in the folder.
    ``inputs`` and ``advisory`` leave out optional files that no earlier stage produced.
    """

    target: str
    stage: str
    model: str
    variant: str
    options: Mapping[str, Any]
    inputs: Mapping[str, Path]  # by role
    outputs: Mapping[str, Path]  # by role
    project: Path
    code_roots: tuple[str, ...] = ()  # the setting `code`: user code is imported from there
    advisory: Mapping[str, Path] = field(default_factory=dict)  # for error messages only
    toolchain: Toolchain | None = None  # runs the engine; None: the default interpreter
    in_own_interpreter: bool = False  # the stage uses the toolchain through another process
    timing_caches: Path | None = None  # the builders' timing caches; they affect no result
    parts: Path | None = None  # of a stopped run of the same key; removed when a run ends
    baseline: Mapping[str, Any] | None = None  # the earlier build for a gate, as JSON values
    # files by role of an engine's earlier builds, for `refit`; newest first
    earlier: Sequence[Mapping[str, str]] = ()
    # what the server has imported before it forks the job's process
    server: Literal["bare", "light", "torch"] = "bare"
    preload: tuple[str, ...] = ()  # further modules, imported at the first such job
    # variables of this job only, such as the GPU selected for it
    environment: Mapping[str, str] = field(default_factory=dict)
    exclusive: tuple[str, ...] = ()  # devices that no other stage uses: UUIDs of GPUs, "cpu"
    obstacle: tuple[str, str] | None = None  # why it cannot run here, and the next step
    threads: int = 0  # for computations independent of the thread count; 0: all cores
    progress: Callable[[str], None] = field(default=lambda _: None, compare=False)
    # what is done, of how much (0: unknown), and its unit: 3 of 5 batches. Not in the log
    count: Callable[[int, int, str], None] = field(default=lambda *_: None, compare=False)
    # ends the process at once: for callbacks of C++ libraries that no exception may cross
    fail: Callable[[BuildsysError], NoReturn] = field(default=_raise, compare=False)

    @property
    def runs_in(self) -> Toolchain | None:
        """The toolchain whose interpreter runs the stage, None for the default one."""
        return None if self.in_own_interpreter else self.toolchain

    def display_path(self, path: Path) -> str:
        """Return ``path`` relative to the project folder, if it is inside."""
        return str(path.relative_to(self.project) if path.is_relative_to(self.project) else path)


@dataclass(frozen=True)
class StageResult:
    """The result of a stage. The result file has it below the common header."""

    status: str = "passed"  # passed | failed | unavailable | noisy
    reason: str = ""  # one sentence; empty if passed
    hint: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    changes: Sequence[str] = ()  # of the manifest, as YAML, that may help


@dataclass(frozen=True)
class ServerKind:
    """One kind of server."""

    name: str
    preload: tuple[str, ...] = ()  # they may be missing
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

    Importing the module of a stage takes 10 to 50 ms.
    """
    stage = () if "." in job.stage else (f"buildsys.stages.{job.stage}.stage",)
    return (*stage, *job.preload)


class JobNotStartedError(WorkerDied):
    """A job not started by its server; another one can run it."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Encode ``message`` as one line; paths become texts."""
    return json.dumps(message, separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return vars(value) if isinstance(value, Toolchain) else str(value)


def job_to_json(job: Job) -> Message:
    """List the fields of ``job`` for ``encode``, without its callbacks."""
    return {name: value for name, value in vars(job).items() if name not in _LOCAL}


def job_from_json(fields: Message) -> Job:
    """Make a job from the values of ``job_to_json``, without callbacks."""
    toolchain, caches, parts = (fields[name] for name in ("toolchain", "timing_caches", "parts"))
    converted = {
        "project": Path(fields["project"]),
        **{name: {role: Path(path) for role, path in fields[name].items()} for name in _PATHS},
        "timing_caches": caches and Path(caches),
        "parts": parts and Path(parts),
        "earlier": tuple(fields["earlier"]),
        "exclusive": tuple(fields["exclusive"]),
        "preload": tuple(fields["preload"]),
        "code_roots": tuple(fields["code_roots"]),
        "toolchain": toolchain and Toolchain(**{**toolchain, "python": Path(toolchain["python"])}),
    }
    return Job(**{**fields, **converted})


def error_to_json(error: BuildsysError) -> Message:
    """Convert ``error`` to JSON values. Other classes become stage errors."""
    fields = asdict(error) if isinstance(error, StageError) else {"problem": str(error)}
    name = type(error).__name__
    return {"class": name if name in _ERRORS else StageError.__name__, "fields": fields}


def error_from_json(fields: Message) -> StageError:
    """Make an error from the values of ``error_to_json``."""
    return _ERRORS[fields["class"]](**fields["fields"])
