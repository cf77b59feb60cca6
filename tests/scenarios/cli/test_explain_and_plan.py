"""``buildsys explain`` and ``buildsys plan`` on a small built model."""

import sqlite3
import time
from pathlib import Path

from command_answers import answer, commit, git, states, texts
from project_folder import ProjectFolder, Ran, wait_until
from test_doit import HEAVY, TARGETS, imported

from buildsys.system.files import Stamp

SLOW = {"yaml", "rich"}  # pydantic checks the records of the store
MODEL = "lin/export/model.onnx"


def edit_state(project: ProjectFolder, statement: str) -> None:
    with sqlite3.connect(project.root / ".buildsys/state.db") as connection:
        connection.execute(statement)
    connection.close()


def record_otherwise(project: ProjectFolder, target: str, label: str, value: str) -> None:
    """Change a recorded key part, as if built with another version or on another device."""
    path = f"'$.\"{label}\"'"
    edit_state(
        project,
        f"UPDATE records SET key = 'k', parts = json_set(parts, {path}, '{value}') "
        f"WHERE target = '{target}'",
    )


def everything(root: Path) -> dict[Path, tuple[int, int, int]]:
    stats = {path: path.lstat() for path in root.rglob("*")}
    return {
        path: (found.st_mtime_ns, found.st_ctime_ns, found.st_size) for path, found in stats.items()
    }


# --- explain ---


def test_fresh_targets_show_when_why_and_how_fast_they_were_built(
    built_once: tuple[ProjectFolder, Ran],
) -> None:
    built = built_once[0]
    explained = built.buildsys("explain", "export:lin")
    assert (explained.code, explained.err) == (0, "")
    line, count = explained.out.splitlines()
    assert line.startswith("fresh  export:lin: built ")
    assert " UTC) in " in line
    assert line.endswith("; reason: never built")
    assert count == "1 fresh"
    first, count = built.buildsys("explain").out.splitlines()
    assert first.startswith("fresh  lin: all 8 targets, last built ")
    assert count == "8 fresh"
    assert states(built, "explain") == dict.fromkeys(TARGETS, "fresh")


def test_every_reason_is_shown_from_old_to_new(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    built.edit("configs/models/lin.yaml", "duration: 5ms", "duration: 6ms")
    built.edit("plugins/models/small.py", "manual_seed(0)", "manual_seed(1)")
    (built.root / "build/lin/reference/min.npz").write_bytes(b"edited")
    (built.root / "build/lin/validate/result.json").unlink()
    record_otherwise(built, "engine:lin:ort", "tool:onnxruntime", "1.2.3")
    record_otherwise(built, "verify:lin:ort", "device:cpu.model", "another CPU")
    found = texts(built, "explain")
    assert found["export:lin"] == ["export.opset: 17 → 18", "plugins/models/small.py changed"]
    assert found["reference:lin"] == [
        "plugins/models/small.py changed",
        "output edited by hand: lin/reference/min.npz",
    ]
    assert found["simplify:lin"] == [
        "input lin/reference/min.npz changed",
        "upstream: export:lin will rerun",
        "upstream: reference:lin will rerun",
    ]
    assert "output missing: lin/validate/result.json" in found["validate:lin"]
    assert found["engine:lin:ort"][0].startswith("onnxruntime 1.2.3 → ")
    assert found["verify:lin:ort"][1].startswith("device cpu.model: another CPU → ")
    assert found["bench:lin:ort"][0] == "bench.duration: 0.005 → 0.006"
    state = states(built, "explain")
    assert state == dict.fromkeys(TARGETS, "stale")


def test_a_run_and_info_use_the_same_words_and_the_reason_is_kept(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    planned = answer(built, "plan")["targets"]
    info = built.doit("info", "export:lin")
    assert "export:lin: export.opset: 17 → 18" in info.out
    ran = built.doit()
    assert "run          export:lin  … export.opset: 17 → 18\n" in ran.out
    assert ran.ran <= {one["target"] for one in planned}
    assert ran.ran >= {one["target"] for one in planned if one["state"] == "stale"}
    order = [line.split()[1] for line in ran.out.splitlines() if line.startswith("run ")]
    assert [target for target in (one["target"] for one in planned) if target in order] == order
    assert (
        built.buildsys("explain", "export:lin")
        .out.splitlines()[0]
        .endswith("; reason: export.opset: 17 → 18")
    )
    built.edit("configs/models/lin.yaml", "opset: 18", "opset: 17")
    assert texts(built, "explain", "export:lin") == {"export:lin": ["export.opset: 18 → 17"]}


def test_a_failure_is_a_reason(project: ProjectFolder) -> None:
    project.add_model("lin", "raising")
    assert project.doit("export:lin").code == 2
    explained = project.buildsys("explain", "export:lin")
    assert explained.code == 0
    assert "last run failed: " in explained.out
    assert "the weights are on the other disk" in explained.out
    assert texts(project, "explain", "simplify:lin") == {
        "simplify:lin": [
            "never built",
            "upstream: export:lin will rerun",
            "upstream: reference:lin will rerun",
        ]
    }


def test_the_fields_of_the_answers_are_those_of_the_documentation(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    explained = answer(built, "explain", "export:lin")
    assert list(explained) == ["schema", "targets"]
    assert explained["schema"] == "buildsys/explain/1"
    (target,) = explained["targets"]
    assert list(target) == ["target", "state", "restorable", "reasons", "expected_s", "last_run"]
    assert target["reasons"] == [
        {"kind": "config", "subject": "export.opset", "old": "17", "new": "18",
         "text": "export.opset: 17 → 18"}
    ]  # fmt: skip
    assert list(target["last_run"]) == ["status", "started", "seconds", "reason", "reasons"]
    plan = answer(built, "plan")
    assert list(plan) == ["schema", "expected_s", "expected_at_most_s", "unknown", "targets"]
    assert (plan["schema"], plan["unknown"]) == ("buildsys/plan/1", 0)
    assert 0 < plan["expected_s"] < plan["expected_at_most_s"]


def test_no_worker_is_started_and_nothing_heavy_imported(built: ProjectFolder) -> None:
    files = [built.root, *built.root.glob("configs/**/*"), *built.root.glob("plugins/**/*")]
    wait_until(
        lambda: all(Stamp.of(file.stat()).is_settled(time.time_ns()) for file in files),
        "the manifests are old enough to be cached",
    )
    built.doit()  # so that the manifests need not be resolved
    (built.root / "build" / MODEL).unlink()
    avoided = HEAVY | SLOW | {"buildsys.workers.pool", "buildsys.execution.executor"}
    for arguments in (("explain",), ("plan",), ("explain", "--json")):
        assert imported(built, *arguments) & avoided == set()


# --- plan ---


def test_a_plan_has_the_usual_times_and_writes_nothing(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "duration: 5ms", "duration: 6ms")
    first, second, count = built.buildsys("plan").out.splitlines()
    assert first.split()[:2] == ["run", "bench:lin:ort"]
    assert first.endswith("s  bench.duration: 0.005 → 0.006")
    assert second.split()[:2] == ["run", "report:lin"]
    assert count.startswith("2 targets; usual time: ")
    built.add_model("new")
    git(built.root, "init", "-q")
    commit(built.root, "one")
    before = everything(built.root)
    for arguments in (("explain",), ("plan",), ("plan", "--since", "HEAD")):
        assert built.doit(*arguments).code == 0
    assert everything(built.root) == before


# --- bad input ---
