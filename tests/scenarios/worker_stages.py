"""Stages that behave badly, each in its own way. A job names one in ``options["do"]``."""

import ctypes
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

from buildsys.errors import CheckFailed, StageError, Unavailable
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    behaviour = globals()[job.options["do"]]
    result = behaviour(job)
    return result if isinstance(result, StageResult) else StageResult(figures={"pid": os.getpid()})


def echo(job: Job) -> StageResult:
    return StageResult(
        figures={"options": dict(job.options), "cwd": str(Path.cwd()), "parent": os.getppid()}
    )


def show_environment(job: Job) -> StageResult:
    return StageResult(
        figures={
            "cwd": str(Path.cwd()),
            **{name: os.environ.get(name) for name in ("BUILDSYS_MARK", "TERM")},
        }
    )


def report_progress(job: Job) -> None:
    job.progress("first")
    job.progress("second")


def fail_check(job: Job) -> StageResult:
    return StageResult("failed", "it is wrong", "look at it", {"worst": 3})


def raise_stage_error(job: Job) -> None:
    raise StageError("no such operator", "use another opset")


def fail_in_a_callback(job: Job) -> None:
    """Fail where an exception would be printed and forgotten: in a callback that C calls."""
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    callback = compare(lambda *_: job.fail(StageError("no such operator", "use another opset")))
    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(), 2, 4, callback)


def raise_check_failed(job: Job) -> None:
    raise CheckFailed("outputs differ", "see the tensors")


def raise_unavailable(job: Job) -> None:
    raise Unavailable("there is no GPU", "run it elsewhere")


def raise_unexpected(job: Job) -> None:
    try:
        {}["missing"]
    except KeyError as cause:
        raise ValueError("first line of it\nsecond line") from cause


def return_nonsense(job: Job) -> StageResult:
    return StageResult("fine")


def give_unwritable_figures(job: Job) -> StageResult:
    return StageResult(figures={"value": object()})


def kill_itself(job: Job) -> None:
    os.kill(os.getpid(), getattr(signal, job.options.get("signal", "SIGKILL")))
    time.sleep(60)


def crash(job: Job) -> None:
    ctypes.string_at(0)


def abort(job: Job) -> None:
    os.abort()


def raise_long_message(job: Job) -> None:
    raise ValueError(f"first words {'x' * 5_000_000} last words")


def raise_long_stage_error(job: Job) -> None:
    raise StageError(f"first words {'x' * 5_000_000} last words", "y" * 5_000_000)


def return_long_reason(job: Job) -> StageResult:
    return StageResult("failed", f"first words {'x' * 5_000_000} last words", "y" * 5_000_000)


def import_broken_torch(job: Job) -> None:
    __import__("broken_torch")


def leave_silently(job: Job) -> None:
    os._exit(0)


def hang(job: Job) -> None:
    job.progress(f"{os.getpid()}")
    time.sleep(600)


def fill_memory(job: Job) -> None:
    limit = 300 << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    hog = []
    while True:
        hog.append(bytearray(16 << 20))


def claim_no_memory(job: Job) -> None:
    raise RuntimeError(
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 1 TB"
    )


def start_grandchild(job: Job) -> StageResult:
    return StageResult(figures={"grandchild": _sleeper().pid})


def start_grandchild_and_hang(job: Job) -> None:
    job.progress(f"{_sleeper().pid}")
    hang(job)


def fork_grandchild_and_die(job: Job) -> None:
    if os.fork() == 0:  # keeps every descriptor of its parent open
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)


def print_everywhere(job: Job) -> None:
    print("from Python, with ✅")
    libc = ctypes.CDLL(None)
    libc.printf(b"from C stdio\n")
    os.write(2, b"from a bare descriptor\n")
    subprocess.run(["echo", "from a subprocess"], check=True)


def wait_for_file(job: Job) -> None:
    job.progress(f"{os.getpid()}")
    _wait_for_file(job.options["file"])


def _wait_for_file(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.01)


def say_much(job: Job) -> StageResult:
    for _ in range(2000):
        job.progress("x" * 500)
    return StageResult(figures={"samples": list(range(200_000)), "text": "x" * 1_000_000})


def list_descriptors(job: Job) -> StageResult:
    return StageResult(
        figures={"descriptors": [str(entry.readlink()) for entry in _open_descriptors()]}
    )


def _open_descriptors() -> list[Path]:
    entries = sorted(Path("/proc/self/fd").iterdir())
    return [
        entry for entry in entries if entry.is_symlink()
    ]  # the one that listed them is closed by now


def _sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"])
