"""Settings and scheduling of all tests."""

from __future__ import annotations

import os
import signal
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# a slow or busy machine must not fail a test
settings.register_profile("buildsys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("buildsys")

# worker servers end with the run that started them, unless a test changes this
os.environ["BUILDSYS_WORKER_IDLE"] = "0"


# background jobs of a shell ignore SIGINT, and their children inherit that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a separate machine lock, so benchmarks do not wait for each other."""
    folder = tempfile.TemporaryDirectory(prefix="buildsys-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["BUILDSYS_MACHINE_LOCK"] = folder.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run each file in a single process, for its fixtures, and all GPU tests in one."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/gpu" if file.startswith("tests/gpu/") else file

    return ByFile(config, log)
