"""Single jobs of commands in real workers."""

from pathlib import Path

import pytest
from pool_project import PoolProject

from buildsys.cli.worker_pool import run_job
from buildsys.errors import StageError


def test_long_lists_are_complete_and_a_failed_job_is_an_error(tmp_path: Path) -> None:
    project, numbers = PoolProject(tmp_path), list(range(100))
    with project.pool as pool:
        job = project.job("echo", numbers=numbers)
        assert run_job(pool, job)["options"]["numbers"] == numbers
        with pytest.raises(StageError, match="it is wrong") as failed:
            run_job(pool, project.job("fail_check"))
        assert failed.value.hint == "look at it"
        assert list((tmp_path / ".buildsys/logs").iterdir()) == []
        with pytest.raises(StageError, match="unexpected") as unexpected:
            run_job(pool, project.job("raise_unexpected"))
    log = tmp_path / unexpected.value.hint.removeprefix("full log: ")
    assert log.parent == tmp_path / ".buildsys/logs"
    assert "Traceback" in log.read_text()
