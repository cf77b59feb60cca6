"""What all tests share."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# a slow or busy machine is no failure
settings.register_profile("buildsys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("buildsys")

# worker servers end with the run that started them, unless a test asks for more
os.environ["BUILDSYS_WORKER_IDLE"] = "0"


def pytest_configure(config: pytest.Config) -> None:
    """Let benchmarks in other processes of the tests go on: their figures are not looked at."""
    folder = tempfile.TemporaryDirectory(prefix="buildsys-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["BUILDSYS_MACHINE_LOCK"] = folder.name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep each file in one of the processes that run the tests, where its fixtures are, and a GPU in one of them."""
    for item in items:
        on_gpu = item.get_closest_marker("gpu") is not None
        item.add_marker(pytest.mark.xdist_group("gpu" if on_gpu else str(Path(item.path).name)))
