"""What all tests share."""

from __future__ import annotations

import os
import signal
import tempfile
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# a slow or busy machine is no failure
settings.register_profile("buildsys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("buildsys")

# worker servers end with the run that started them, unless a test asks for more
os.environ["BUILDSYS_WORKER_IDLE"] = "0"


# what a shell starts in the background ignores it, and so would all that the tests start and interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Let benchmarks in other processes of the tests go on: their figures are not looked at."""
    folder = tempfile.TemporaryDirectory(prefix="buildsys-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["BUILDSYS_MACHINE_LOCK"] = folder.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep each file in one of the processes that run the tests, where its fixtures are, and a GPU in one of them."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "tests/gpu" if file.startswith("tests/gpu/") else file

    return ByFile(config, log)
