"""Tasks of others in a dodo file of ours."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import Doit

UP_TO_DATE = "everything is up to date ("


@pytest.fixture
def others(doit: Doit, tmp_path: Path) -> Doit:
    """All our targets are up to date."""
    source = tmp_path / "source.txt"
    source.touch()
    copy = {"actions": [Path("copy.txt").touch], "targets": ["copy.txt"], "clean": True}

    def deploy() -> Iterator[dict[str, Any]]:
        yield {"name": "a", "actions": [lambda: None], "task_dep": ["engine:net:ort"]}

    def fail() -> bool:
        print("oops")
        return False

    doit.build_all()
    doit.others = {
        "task_hello": lambda: {**copy, "file_dep": [str(source)]},
        "task_bad": lambda: {"actions": [fail]},
        "task_deploy": deploy,
    }
    return doit


def test_other_tasks_run_beside_ours(others: Doit) -> None:
    assert others("list", "--all", "-q")[1].split()[:3] == ["bad", "bench", "bench:net"]
    assert others("hello") == (0, ".  hello\n")
    assert others("hello") == others("hel*") == others("copy.txt") == (0, "-- hello\n")
    for names in (["hello", "net:verify"], ["-n", "2", "hello", "verify"]):
        code, out = others(*names)
        assert code == 0
        assert out.startswith(f"-- hello\n{UP_TO_DATE}")
    others.fresh.discard("engine:net:ort")
    code, out = others("deploy:a")
    assert (code, list(others.session.finished)) == (0, ["engine:net:ort"])
    assert out.index("done         engine:net:ort") < out.index(".  deploy:a")
    assert others("clean", "hello") == (0, "hello - removing file 'copy.txt'\n")
    unknown = "ERROR: there is no target 'nte:verify'; nearest: "
    assert others("hello", "nte:verify")[1].startswith(unknown)


def test_a_failure_of_another_task_is_told_as_doit_does(others: Doit) -> None:
    code, out = others("bad")
    assert code == 1
    assert out.count("TaskFailed - taskid:bad") == 1
    assert out.endswith("bad <stdout>:\noops\n\n")
    assert UP_TO_DATE not in out


def test_other_tasks_are_ignored_and_forgotten(others: Doit, tmp_path: Path) -> None:
    assert others("hello")[0] == 0
    assert others("ignore", "hello", "verify:net:ort")[0] == 0
    code, out = others("hello", "verify:net:ort")
    assert (code, out) == (0, f"!! hello\n{UP_TO_DATE}4 targets, 1 ignored)\n")
    marks = json.loads((tmp_path / ".buildsys/ignored.json").read_text())
    assert marks == ["verify:net:ort"]
    assert others("forget", "hello")[0] == 0
    assert others.executor.forgotten == []
    assert others("hello") == (0, ".  hello\n")
    assert others("forget", "--all")[0] == 0
    assert others.executor.forgotten
    assert others("hello") == (0, ".  hello\n")
