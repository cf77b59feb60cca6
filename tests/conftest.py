"""Settings and scheduling of all tests."""

import gc
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# a slow or busy machine must not fail a test
settings.register_profile(
    "buildsys", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("buildsys")

# else every process of the tests would compile all modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# worker servers end with the run that started them, unless a test changes this
os.environ["BUILDSYS_WORKER_IDLE"] = "0"

# only tests of trials pay for them
os.environ["BUILDSYS_TRIALS"] = "0"


# background jobs of a shell ignore SIGINT, and their children inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# in one process each, for a GPU, and for libraries that take 15 s to import
TOGETHER = re.compile(r"tests/(gpu|integration)/(?!plan/)")
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 8 << 30  # the files of a run take 1 GB, its processes 5 GB


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory, and give the tests a separate machine lock.

    On a disk, making and deleting folders takes ten times as long, and every ``fsync`` waits.
    ``TMPDIR=/tmp pytest`` uses the disk and keeps the files after the run.
    """
    if "TMPDIR" not in os.environ and has_room_in_memory():
        memory = tempfile.TemporaryDirectory(prefix="bt-", dir=MEMORY, ignore_cleanup_errors=True)
        config.add_cleanup(memory.cleanup)
        config.add_cleanup(_forget_temporary_folder)  # mutmut calls pytest several times
        os.environ["TMPDIR"] = tempfile.tempdir = memory.name
    folder = tempfile.TemporaryDirectory(prefix="buildsys-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["BUILDSYS_MACHINE_LOCK"] = folder.name


def _forget_temporary_folder() -> None:
    os.environ.pop("TMPDIR", None)
    tempfile.tempdir = None


def has_room_in_memory() -> bool:
    """Return True if there is a large file system in memory from which programs can run."""
    try:
        is_executable = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
        free = shutil.disk_usage(MEMORY).free
        available = int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0])
    except (OSError, AttributeError, IndexError):  # not Linux
        return False
    is_writable = os.access(MEMORY, os.W_OK)
    return is_executable and is_writable and min(free, available * 1024) >= MEMORY_BYTES


def pytest_runtest_setup() -> None:
    """Forget variables that imports set, as simplify for onnxsim and scikit-learn for OpenMP.

    A stage imports them in a process of its own.
    """
    for name in [name for name in os.environ if name.startswith(("KMP_", "ONNXSIM_"))]:
        del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Forget the modules of a test's own folder: another test may find them by their names."""
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    yield
    if folder is not None:
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(f"{folder}/"):
                del sys.modules[name]


def pytest_collection() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave modules and tests out of garbage collections, and collect more rarely.

    Else collections take 6 % of the time.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 100)


def pytest_sessionfinish() -> None:
    """Leave everything out of the five collections with which pytest ends."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in a single process, for its fixtures, and all of some folders in one."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            together = TOGETHER.match(nodeid)
            return together.group() if together else nodeid.partition("::")[0]

    return ByFile(config, log)
