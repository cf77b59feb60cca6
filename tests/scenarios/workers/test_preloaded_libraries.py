"""Preloaded libraries: a forked worker computes the same as a fresh process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from buildsys.workers import pool as pools
from buildsys.workers.job import LIGHT, TORCH, Job
from buildsys.workers.pool import WorkerPool

ROOT = Path(__file__).resolve().parents[3]
STAGES = "tests.scenarios.library_stages"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
def pool(project: Path) -> Iterator[WorkerPool]:
    """A pool with the kind of server given by a job's variant."""
    with pytest.MonkeyPatch.context() as patch, WorkerPool(project / ".buildsys") as pool:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(
            pools,
            "server_kind_of",
            lambda job: {"torch": TORCH, "light": LIGHT}[job.variant],
        )
        yield pool


def _forked(pool: WorkerPool, project: Path, server: str, do: str) -> dict[str, str]:
    outputs = {"result": project / f"{do}.json"}
    job = Job(f"x:{do}", STAGES, "m", server, {"do": do}, {}, outputs, project)
    return pool.run(job, log=project / f"{do}.log", timeout_s=120).figures


def test_the_light_server_has_no_torch_but_a_stage_can_get_it(
    pool: WorkerPool, project: Path
) -> None:
    loaded = _forked(pool, project, "light", "name_loaded")
    unloaded = {"torch": "False", "sympy": "False"}
    assert loaded == {**unloaded, "onnxsim": "True", "onnxruntime": "True", "numpy": "True"}
    assert _forked(pool, project, "light", "find_torch") == {"found": "True"}


@pytest.mark.parametrize("server", ["torch", "light"])
def test_a_server_that_forks_has_one_thread(pool: WorkerPool, project: Path, server: str) -> None:
    _forked(pool, project, server, "name_loaded")  # OpenBLAS ends its threads at the first fork
    assert _forked(pool, project, server, "list_threads") == {"server": "1", "own": "1"}
    log = (project / ".buildsys" / "workers" / f"{server}.log").read_text()
    threads = int(log.rpartition("ready, ")[2].split()[0])
    assert threads <= (os.cpu_count() or 1)


def test_rtx_finds_its_library_and_builds_in_a_worker(pool: WorkerPool, project: Path) -> None:
    pytest.importorskip("tensorrt_rtx_libs", reason="TensorRT-RTX is not installed")
    assert _forked(pool, project, "light", "open_rtx_library") == {"copies": "1", "built": "True"}
