"""list, info, forget, clean and ignore on our tasks."""

from pathlib import Path

import pytest
from cli_doubles import Doit, fail, make_session

from buildsys.errors import WorkerDied


def test_info_shows_why_a_target_is_stale(doit: Doit) -> None:
    doit.reasons["export:net"] = "export.opset: 17 → 18"
    code, out = doit("info", "export:net")
    assert code == 1
    assert "export:net: export.opset: 17 → 18" in out
    assert "build/net/export/model.onnx" in out
    assert "model.onnx.data" not in out, "a file that is not always written is no target to doit"


@pytest.mark.parametrize(
    ("arguments", "forgotten"),
    [
        (("forget", "export:net"), {"export:net"}),
        (("forget", "engine:net"), {"engine:net:ort", "engine:net:rtx"}),
        (("forget", "build:net"), None),
        (("forget",), None),
        (("forget", "--all"), None),
        (("clean", "--forget", "simplify:net"), {"simplify:net"}),
        (("clean", "simplify:net"), set()),
        (("list", "--all", "--status"), set()),
    ],
)
def test_forgetting_reaches_our_records(
    doit: Doit, arguments: tuple[str, ...], forgotten: set[str] | None
) -> None:
    code, _ = doit(*arguments)
    assert code == 0
    assert set(doit.executor.forgotten) == (
        doit.session.actions.keys() if forgotten is None else forgotten
    )


def test_forgetting_a_gate_keeps_its_records(tmp_path: Path) -> None:
    session, executor = make_session(tmp_path, gates={"latency": {"tolerance": "5%"}})
    for target in ("gate:net:ort", "bench:net:ort"):
        session.forget(target)
    assert executor.forgotten == ["gate:net:ort kept", "bench:net:ort"]


def test_a_failure_forgets_nothing(doit: Doit) -> None:
    doit.actions["export:net"] = fail(WorkerDied("export:net was killed"))
    doit("--continue")
    assert doit.executor.forgotten == []


def test_clean_lists_what_it_removes_and_a_dry_run_removes_nothing(doit: Doit) -> None:
    doit.build_all()
    files = {path for path in (doit.root / "build/net").rglob("*") if path.is_file()}  # no pages
    _, out = doit("clean", "--dry-run")
    assert out.count(" - removing ") == len(files)
    assert all(path.exists() for path in files)
    _, out = doit("clean", "export:net")
    assert "export:net - removing build/net/export/model.onnx\n" in out
    assert not (doit.root / "build/net/export").exists()
    assert (doit.root / "build/net/simplify/model.onnx").exists()
    doit("clean", "build:net")
    assert not (doit.root / "build/net").exists()


def test_clean_removes_pages_with_the_report(doit: Doit) -> None:
    doit.build_all()
    page = doit.root / "build/report/net.html"
    doit("clean", "engine:net")
    assert page.is_file()
    _, out = doit("clean", "--dry-run", "build:net")
    assert "removing build/report/net.html\n" in out
    assert page.is_file()
    _, out = doit("clean", "build:net")
    assert not page.parent.exists()


def test_ignored_targets_and_those_downstream_do_not_run(doit: Doit) -> None:
    doit("ignore", "bench")
    code, out = doit()
    assert code == 0
    assert not any(target.startswith(("bench", "report")) for target in doit.session.finished)
    assert "3 ignored" in out
