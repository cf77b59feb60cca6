from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import make_session, write_result

from buildsys.cli.commands.clean import remove_files
from buildsys.cli.session import BuildSession
from buildsys.errors import CheckFailed, StageError
from buildsys.plan.action import Action
from buildsys.project import plan as stage_table
from buildsys.project.plan import plan_model


def test_a_query_plans_only_the_models_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = make_session(tmp_path, "a", "b")
    planned = []

    def plan(spec: Any, *arguments: Any) -> tuple[Action, ...]:
        planned.append(spec["model"])
        return plan_model(spec, *arguments)

    monkeypatch.setattr(stage_table, "plan_model", plan)
    explained = session.explain(session.select(["engine:b"]))
    assert planned == ["b"]
    assert list(explained)[-2:] == ["engine:b:ort", "engine:b:rtx"]
    assert list(session.explain(session.select([]))) == list(session.actions)


def test_a_problem_during_the_check_is_left_to_the_run(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)

    def broken(target: str) -> bool:
        raise StageError("cannot read net.py: Permission denied")

    executor.up_to_date_status = executor.examine = broken  # type: ignore[assignment,method-assign]
    assert not session.is_fresh("export:net")
    assert session.stale_reason("export:net") == ""


def test_the_exit_code_is_that_of_the_worst_failure(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path)
    for target, error, code in (
        ("validate:net", CheckFailed("too far off"), 1),
        ("export:net", StageError("no such operator"), 2),
        ("verify:net:ort", CheckFailed("too far off"), 2),
        ("engine:net:ort", ZeroDivisionError(), 2),
    ):
        throw = (_ for _ in ()).throw
        executor.actions[target] = partial(throw, error)
        with pytest.raises(type(error)):
            session.build(target)
        assert session.exit_code == code
        assert session.finished[target].status == "failed"


def test_a_result_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    session, _ = make_session(tmp_path)
    assert session.result("export:net") == {}
    path = session.project.build / "net/export/export.json"
    path.parent.mkdir(parents=True)
    for content in (b'{"status": "pas', b"[1]", b"\xff"):
        path.write_bytes(content)
        assert session.result("export:net") == {}


def test_clean_removes_the_files_of_a_target_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session, executor = make_session(tmp_path)
    for target in ("verify:net:ort", "verify:net:rtx"):
        write_result(session, target, status="passed")
    folder = session.project.build / "net" / "verify"
    (folder / "ort.failed.npz").write_text("tensors of a failed check")
    (folder / "mine.txt").write_text("")
    executor.owned = lambda target: {"net/verify/ort.failed.npz"}  # type: ignore[method-assign]
    expected = {"ort.json", "ort.log", "ort.failed.npz"}
    for dry_run in (True, False):
        assert all((folder / name).exists() for name in expected)
        remove_files(session, ["verify:net:ort"], dry_run=dry_run)
        assert capsys.readouterr().out.count("verify:net:ort - removing ") == len(expected)
    assert {path.name for path in folder.iterdir()} == {"rtx.json", "rtx.log", "mine.txt"}
    write_result(session, "export:net", status="passed")
    remove_files(session, ["export:net"], dry_run=False)
    assert not (session.project.build / "net/export").exists()
    assert session.project.build.is_dir()


@pytest.mark.parametrize("executor", ["{}", "{kind: nope}", "{kind: ssh, host: -x}"])
def test_the_history_needs_no_executors(
    tmp_path: Path, executor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "configs/models").mkdir(parents=True)
    (tmp_path / "configs/project.yaml").write_text(f"executors: {{x: {executor}}}\n")
    assert not BuildSession.of_history(tmp_path).project.models
    assert "all manifests, as they share configs/project.yaml" in capsys.readouterr().err
