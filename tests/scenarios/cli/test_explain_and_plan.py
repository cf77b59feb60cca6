"""``doit explain`` and ``doit plan`` with real doit, real git and a small built model."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from project_folder import TIMEOUT_S, ProjectFolder, Ran
from test_doit import HEAVY, TARGETS, imported

SLOW = {"pydantic", "yaml", "rich"}
MODEL = "lin/export/model.onnx"


def answer(project: ProjectFolder, *arguments: str, warned: bool = False) -> Any:
    """Return the one JSON document that a command prints."""
    done = project.doit(*arguments, "--json")
    assert (done.code, bool(done.err)) == (0, warned), done.err
    return json.loads(done.out)


def texts(project: ProjectFolder, *arguments: str, warned: bool = False) -> dict[str, list[str]]:
    """Return target -> its reasons in words."""
    found = answer(project, *arguments, warned=warned)["targets"]
    return {one["target"]: [reason["text"] for reason in one["reasons"]] for one in found}


def states(project: ProjectFolder, *arguments: str) -> dict[str, str]:
    return {one["target"]: one["state"] for one in answer(project, *arguments)["targets"]}


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


# --- explain --------------------------------------------------------------------------------------


def test_a_fresh_target_shows_when_why_and_how_fast_it_was_built(
    built: ProjectFolder,
) -> None:
    explained = built.doit("explain", "export:lin")
    assert (explained.code, explained.err) == (0, "")
    line, count = explained.out.splitlines()
    assert line.startswith("fresh  export:lin: built ")
    assert " UTC) in " in line
    assert line.endswith("; reason: never built")
    assert count == "1 fresh"


def test_without_a_name_all_targets_are_explained_and_fresh_ones_together(
    built: ProjectFolder,
) -> None:
    first, count = built.doit("explain").out.splitlines()
    assert first.startswith("fresh  lin: all 8 targets, last built ")
    assert count == "8 fresh"
    assert states(built, "explain") == dict.fromkeys(TARGETS, "fresh")


def test_every_reason_is_shown_from_old_to_new(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    built.edit("configs/models/lin.yaml", "duration: 50ms", "duration: 60ms")
    built.edit("plugins/models/small.py", "manual_seed(0)", "manual_seed(1)")
    (built.root / "build/lin/reference/min.npz").write_bytes(b"edited")
    (built.root / "build/lin/validate/result.json").unlink()
    record_otherwise(built, "engine:lin:ort", "tool:onnxruntime", "1.2.3")
    record_otherwise(built, "verify:lin:ort", "device:cpu.model", "another CPU")
    found = texts(built, "explain")
    assert found["export:lin"] == [
        "export.opset: 17 → 18",
        "plugins/models/small.py changed",
    ]
    assert found["reference:lin"] == [
        "plugins/models/small.py changed",
        "output edited by hand: lin/reference/min.npz",
    ]
    assert found["simplify:lin"] == ["upstream: export:lin will rerun"]
    assert "output missing: lin/validate/result.json" in found["validate:lin"]
    assert found["engine:lin:ort"][0].startswith("onnxruntime 1.2.3 → ")
    assert found["verify:lin:ort"][1].startswith("device cpu.model: another CPU → ")
    assert found["bench:lin:ort"][0] == "bench.duration: 0.05 → 0.06"
    state = states(built, "explain")
    assert state["simplify:lin"] == "may-rerun"
    assert {target for target, found in state.items() if found == "stale"} == TARGETS - {
        "simplify:lin"
    }


def test_the_text_has_a_line_per_reason_and_counts_at_the_end(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    shown = built.doit("explain", "export:lin", "simplify:lin", "reference:lin").out.splitlines()
    assert shown[0].startswith("stale      export:lin: last run ")
    assert shown[1] == "             export.opset: 17 → 18"
    assert shown[2].startswith("fresh      reference:lin: built ")
    assert shown[3].startswith("may rerun  simplify:lin: last run ")
    assert shown[4] == "             upstream: export:lin will rerun"
    assert shown[5] == "1 stale, 1 may rerun, 1 fresh"


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
        built.doit("explain", "export:lin")
        .out.splitlines()[0]
        .endswith("; reason: export.opset: 17 → 18")
    )
    built.edit("configs/models/lin.yaml", "opset: 18", "opset: 17")
    assert texts(built, "explain", "export:lin") == {"export:lin": ["export.opset: 18 → 17"]}


def test_a_failure_is_a_reason(project: ProjectFolder) -> None:
    project.add_model("lin", "raising")
    assert project.doit("export:lin").code == 2
    explained = project.doit("explain", "export:lin")
    assert explained.code == 0
    assert "last run failed: " in explained.out
    assert "the weights are on the other disk" in explained.out
    assert texts(project, "explain", "simplify:lin") == {
        "simplify:lin": ["never built", "upstream: export:lin will rerun"]
    }


def test_a_forgotten_record_is_a_reason(built: ProjectFolder) -> None:
    built.doit("forget", "bench:lin:ort")
    assert texts(built, "explain", "bench:lin:ort") == {
        "bench:lin:ort": ["forgotten by `doit forget`"]
    }


def test_missing_inputs_are_reasons(built: ProjectFolder) -> None:
    (built.root / "build" / MODEL).unlink()
    found = texts(built, "explain", "export:lin", "simplify:lin")
    assert found["export:lin"] == [f"output missing: {MODEL}"]
    assert found["simplify:lin"] == [f"input {MODEL} is missing", "upstream: export:lin will rerun"]


def test_long_values_are_short_in_text_and_whole_in_json(built: ProjectFolder) -> None:
    token = "x" * 5000
    built.edit(
        "configs/models/lin.yaml", "small.py:Linear", f"small.py:Linear, kwargs: {{token: {token}}}"
    )
    assert max(map(len, built.doit("explain", "export:lin").out.splitlines())) < 150
    reasons = answer(built, "explain", "export:lin")["targets"][0]["reasons"]
    assert [one["new"] for one in reasons if one["subject"] == "source.kwargs.token"] == [
        json.dumps(token)
    ]


def test_the_fields_of_the_answers_are_those_of_the_documentation(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    explained = answer(built, "explain", "export:lin")
    assert list(explained) == ["schema", "targets"]
    assert explained["schema"] == "buildsys/explain/1"
    (target,) = explained["targets"]
    assert list(target) == ["target", "state", "restorable", "reasons", "expected_s", "last_run"]
    assert target["reasons"] == [
        {"kind": "config", "subject": "export.opset", "old": "17", "new": "18", "line": None,
         "text": "export.opset: 17 → 18"}
    ]  # fmt: skip
    assert list(target["last_run"]) == ["status", "started", "seconds", "reason", "reasons"]
    plan = answer(built, "plan", "-n", "2")
    assert list(plan) == [
        "schema", "jobs", "expected_s", "expected_at_most_s", "expected_parallel_s", "unknown",
        "targets",
    ]  # fmt: skip
    assert (plan["schema"], plan["jobs"], plan["unknown"]) == ("buildsys/plan/1", 2, 0)
    assert 0 < plan["expected_s"] < plan["expected_at_most_s"]
    assert (
        plan["expected_at_most_s"] / 2 <= plan["expected_parallel_s"] <= plan["expected_at_most_s"]
    )


def test_no_worker_is_started_and_nothing_heavy_imported(built: ProjectFolder) -> None:
    built.doit()  # so that the manifests need not be resolved
    (built.root / "build" / MODEL).unlink()
    for arguments in (("explain",), ("plan",), ("explain", "--json")):
        assert not imported(built, *arguments) & (
            HEAVY | SLOW | {"buildsys.workers.client.pool", "buildsys.execution.executor"}
        )


# --- plan -----------------------------------------------------------------------------------------


def test_a_plan_of_nothing(built: ProjectFolder) -> None:
    assert built.doit("plan") == Ran(0, "everything is up to date: nothing would run\n", "")
    assert answer(built, "plan")["targets"] == []


def test_a_plan_has_the_usual_times(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "duration: 50ms", "duration: 60ms")
    first, second, count = built.doit("plan").out.splitlines()
    assert first.split()[:2] == ["run", "bench:lin:ort"]
    assert first.endswith("s  bench.duration: 0.05 → 0.06")
    assert second.split()[:2] == ["run", "report:lin"]
    assert count.startswith("2 targets; usual time: ")
    assert "at best" in built.doit("plan", "-n", "2").out


def test_a_target_that_never_ran_has_no_usual_time(built: ProjectFolder) -> None:
    built.add_model("new")
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    shown = built.doit("plan").out
    assert ["run", "export:new", "unknown", "never", "built"] in [
        line.split() for line in shown.splitlines()
    ]
    assert shown.endswith("unknown for 8\n")
    alone = built.doit("plan", "export:new").out
    assert alone.endswith("1 target; time unknown (never built)\n")


def test_explain_and_plan_write_nothing_and_make_nothing(built: ProjectFolder) -> None:
    built.add_model("new")
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    git(built.root, "init", "-q")
    commit(built.root, "one")
    before = everything(built.root)
    for arguments in (("explain",), ("plan",), ("plan", "--since", "HEAD")):
        assert built.doit(*arguments).code == 0
    assert everything(built.root) == before


def test_explaining_a_project_that_was_never_built_makes_no_folder(project: ProjectFolder) -> None:
    project.add_model("lin")
    before = everything(project.root)
    assert project.doit("explain").out.endswith("8 stale\n")
    assert project.doit("plan").code == 0
    assert everything(project.root) == before
    assert texts(project, "explain", "export:lin") == {"export:lin": ["never built"]}


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("explain",), ("plan",), ("explain", "--json")])
@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("build:ln", "build:lin"),
        ("exprt:lin", "export:lin"),
        ("lin", "build:lin"),
        ("engin", "engine"),
    ],
)
def test_the_nearest_target_is_suggested_for_an_unknown_one(
    built: ProjectFolder, command: tuple[str, ...], name: str, near: str
) -> None:
    wrong = built.doit(*command, name)
    assert (wrong.code, wrong.out) == (3, "")
    assert wrong.err.startswith(f"ERROR: there is no target '{name}'; nearest: ")
    assert near in wrong.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("explain", "--jsn"),
            "option --jsn not recognized; run `doit help explain` for its options",
        ),
        (
            ("plan", "--since"),
            "option --since requires argument; run `doit help plan` for its options",
        ),
        (("plan", "-n", "two"), "-n expects a positive integer, found 'two'"),
        (("plan", "-n", "0"), "-n expects a positive integer, found '0'"),
    ],
)
def test_wrong_options_are_one_sentence(
    built: ProjectFolder, arguments: tuple[str, ...], problem: str
) -> None:
    assert built.doit(*arguments) == Ran(3, "", f"ERROR: {problem}\n")


def test_options_may_follow_names(built: ProjectFolder) -> None:
    last = json.loads(built.doit("explain", "export:lin", "--json").out)
    assert last == json.loads(built.doit("explain", "--json", "--", "export:lin").out)


def test_groups_stages_and_patterns_name_targets(built: ProjectFolder) -> None:
    assert states(built, "explain", "build:lin").keys() == TARGETS
    assert states(built, "explain", "engine").keys() == {"engine:lin:ort"}
    assert states(built, "explain", "verify:lin").keys() == {"verify:lin:ort"}
    assert states(built, "explain", "*:ort").keys() == {
        "engine:lin:ort",
        "verify:lin:ort",
        "bench:lin:ort",
    }


def test_a_truncated_record_is_reported(built: ProjectFolder) -> None:
    edit_state(
        built, "UPDATE records SET outputs = substr(outputs, 1, 9) WHERE target = 'export:lin'"
    )
    assert texts(built, "explain", "export:lin") == {
        "export:lin": ["the record of its last build cannot be read"]
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b"not a database" * 999),
        lambda file: os.truncate(file, 20_000),
        lambda file: sqlite3.connect(file).execute("PRAGMA user_version=999").connection.close(),
    ],
)
def test_a_state_that_cannot_be_read_is_one_warning_and_left_alone(
    built: ProjectFolder, damage: Callable[[Path], object]
) -> None:
    damage(built.root / ".buildsys/state.db")
    before = everything(built.root)
    explained = built.doit("explain")
    assert explained.code == 0
    assert explained.out.endswith("8 stale\n")
    assert len(explained.err.splitlines()) == 1
    assert "nothing is known of earlier builds" in explained.err
    assert texts(built, "explain", "export:lin", warned=True) == {"export:lin": ["never built"]}
    assert everything(built.root) == before


def test_wrong_manifests_are_reported(built: ProjectFolder) -> None:
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 99")
    wrong = built.doit("explain")
    assert (wrong.code, wrong.out) == (3, "")
    assert "configs/models/lin.yaml:6" in wrong.err


def test_a_read_only_project_can_be_explained(built: ProjectFolder) -> None:
    git(built.root, "init", "-q")
    commit(built.root, "one")
    built.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    for arguments in ("explain", "plan", "plan --since HEAD"):
        done = in_read_only_folder(built, f"touch new; exec {sys.executable} -m doit {arguments}")
        assert done.returncode == 0, done.stderr
        assert "export.opset: 17 → 18" in done.stdout
        assert "Read-only file system" in done.stderr, "the folder was not read-only"


def test_a_full_disk_is_one_sentence(built: ProjectFolder) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "doit", "explain"],
            cwd=built.root, env=built.environment, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "ERROR: No space left on device\n")


def in_read_only_folder(project: ProjectFolder, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script where the project lies on a disk that nobody, not even root, can write to."""
    root = project.root
    mount = f"mount --bind {root} {root} && mount -o remount,ro,bind {root}"
    unshare = ["unshare", "-rm", "sh", "-c"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*unshare, mount], capture_output=True).returncode
    ):
        pytest.skip("this machine does not let us mount a folder read-only")
    return subprocess.run(
        [*unshare, f"{mount} && cd {root} && {script}"],
        env=project.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


# --- since a git revision -------------------------------------------------------------------------


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout


def commit(root: Path, message: str) -> None:
    (root / ".gitignore").write_text("build/\n.buildsys/\n__pycache__/\n*.pth\n/data/\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)


@pytest.fixture
def versioned(project: ProjectFolder, tmp_path: Path) -> ProjectFolder:
    """A project in git with the models ``lin`` and ``old``; nothing is built."""
    project.add_model("lin")
    project.add_model("old")
    git(project.root, "init", "-q")
    commit(project.root, "one")
    git(project.root, "tag", "v1")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    project.environment["TMPDIR"] = str(temporary)
    return project


def leftovers(project: ProjectFolder) -> list[Path]:
    return list(Path(project.environment["TMPDIR"]).iterdir())


def test_since_a_revision_targets_are_added_removed_changed_or_downstream(
    versioned: ProjectFolder,
) -> None:
    root = versioned.root
    versioned.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    (root / "configs/models/old.yaml").rename(root / "configs/models/new.yaml")
    versioned.edit("configs/models/new.yaml", "model: old", "model: new")
    status, index = git(root, "status", "--porcelain"), (root / ".git/index").read_bytes()
    plan = answer(versioned, "plan", "--since", "v1")
    assert (plan["schema"], plan["since"], len(plan["commit"])) == (
        "buildsys/plan-since/1",
        "v1",
        40,
    )
    state = {one["target"]: one["state"] for one in plan["targets"]}
    assert state["export:lin"] == "changed"
    assert state["simplify:lin"] == "behind"
    assert "reference:lin" not in state
    assert {target for target, found in state.items() if found == "added"} == {
        target.replace("lin", "new") for target in TARGETS
    }
    assert {target for target, found in state.items() if found == "removed"} == {
        target.replace("lin", "old") for target in TARGETS
    }
    shown = versioned.doit(
        "plan", "--since", "v1", "export:lin", "simplify:lin", "export:old"
    ).out.splitlines()
    assert shown[:5] == [
        "changed     export:lin",
        "              export.opset: 17 → 18",
        "downstream  simplify:lin",
        "              upstream: export:lin will rerun",
        "removed     export:old",
    ]
    assert shown[5].startswith("since v1 (")
    assert shown[5].endswith("): 1 changed, 1 removed, 1 downstream")
    assert ((root / ".git/index").read_bytes(), git(root, "status", "--porcelain")) == (
        index,
        status,
    )
    assert leftovers(versioned) == []


def test_since_a_revision_sources_and_their_imports_count(versioned: ProjectFolder) -> None:
    root = versioned.root
    assert versioned.doit("plan", "--since", "v1").out.endswith("): no differences\n")
    versioned.edit("configs/models/lin.yaml", "model: lin", "# a comment\nmodel: lin")
    assert versioned.doit("plan", "--since", "v1").out.endswith("): no differences\n")
    (root / "plugins/models/parts.py").write_text("width = 3\n")
    versioned.edit("plugins/models/small.py", "import torch\n", "import torch\nimport parts\n")
    found = texts(versioned, "plan", "--since", "v1", "export:lin")
    assert found == {
        "export:lin": ["plugins/models/parts.py added", "plugins/models/small.py changed"]
    }
    commit(root, "two")
    (root / "plugins/models/parts.py").write_text("width = 4\n")
    assert texts(versioned, "plan", "--since", "HEAD", "export:lin") == {
        "export:lin": ["plugins/models/parts.py changed"]
    }


def test_since_a_revision_files_that_git_ignores_are_taken_as_they_are(
    versioned: ProjectFolder,
) -> None:
    root = versioned.root
    (root / "data").mkdir()
    for path in ("data/a.pth", "w.pth"):
        (root / path).write_bytes(b"weights")
    for name, path in (("lin", "data/a.pth"), ("old", "w.pth")):
        versioned.edit(
            f"configs/models/{name}.yaml", ":Linear}", f":Linear, weights: {{file: {path}}}}}"
        )
    commit(root, "weights")
    assert versioned.doit("plan", "--since", "HEAD").out.endswith("): no differences\n")
    versioned.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    assert texts(versioned, "plan", "--since", "HEAD", "export:lin") == {
        "export:lin": ["export.opset: 17 → 18"]
    }


def test_since_a_revision_weights_and_variables(versioned: ProjectFolder) -> None:
    root = versioned.root
    (root / "my w.bin").write_bytes(b"weights")
    versioned.edit("configs/models/lin.yaml", ":Linear}", ':Linear, weights: {file: "my w.bin"}}')
    versioned.edit(
        "plugins/models/small.py",
        "import torch\n",
        "import os\nimport torch\nWIDTH = os.environ.get('WIDTH')\n",
    )
    commit(root, "weights")
    versioned.environment["WIDTH"] = "7"  # as it is on both sides
    assert versioned.doit("plan", "--since", "HEAD").out.endswith("): no differences\n")
    (root / "my w.bin").write_bytes(b"other weights")
    assert texts(versioned, "plan", "--since", "HEAD", "export:lin") == {
        "export:lin": ["weights my w.bin changed"]
    }


def test_since_a_revision_in_a_subfolder_with_configs_elsewhere(
    versioned: ProjectFolder, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    shutil.copytree(versioned.root, whole / "deploy/engines", ignore=shutil.ignore_patterns(".git"))
    (whole / "deploy/engines/configs").rename(whole / "manifests")
    git(whole, "init", "-q")
    commit(whole, "one")
    project = ProjectFolder(whole / "deploy/engines")
    for folder in ("../../manifests", str(whole / "manifests")):
        project.environment["BUILDSYS_CONFIGS"] = folder
        assert project.doit("plan", "--since", "HEAD").out.endswith("): no differences\n")
    manifest = whole / "manifests/models/lin.yaml"
    manifest.write_text(manifest.read_text().replace("opset: 17", "opset: 16"))
    assert texts(project, "plan", "--since", "HEAD", "export:lin") == {
        "export:lin": ["export.opset: 17 → 16"]
    }
    project.environment["BUILDSYS_CONFIGS"] = str(versioned.root / "configs")
    outside = project.doit("plan", "--since", "HEAD")
    assert (outside.code, outside.out) == (3, "")
    assert "is outside the git repository" in outside.err


def test_since_a_revision_headers_of_c_sources_are_compared(versioned: ProjectFolder) -> None:
    folder = versioned.root / "plugins/ops"
    folder.mkdir(parents=True)
    (folder / "scale.c").write_text('#include "scale.h"\n')
    (folder / "scale.h").write_text("#define SCALE 2\n")
    versioned.edit(
        "configs/models/lin.yaml",
        "export: {opset: 17}\n",
        "export: {opset: 17}\n"
        'ops: [{op: "own::Scale", library: {sources: [plugins/ops/scale.c]}}]\n',
    )
    commit(versioned.root, "an operator")
    assert versioned.doit("plan", "--since", "HEAD").out.endswith("): no differences\n")
    (folder / "scale.h").write_text("#define SCALE 3\n")
    assert texts(versioned, "plan", "--since", "HEAD", "operators:lin") == {
        "operators:lin": ["plugins/ops/scale.h changed"]
    }


def test_since_a_revision_with_configs_as_a_link(versioned: ProjectFolder, tmp_path: Path) -> None:
    root = versioned.root
    (root / "configs").rename(root / "manifests")
    (root / "configs").symlink_to("manifests")
    assert versioned.doit("plan", "--since", "v1").out.endswith("): no differences\n")
    commit(root, "a link")
    versioned.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    for revision in ("HEAD", "v1"):
        found = texts(versioned, "plan", "--since", revision, "export:lin")
        assert found == {"export:lin": ["export.opset: 17 → 18"]}
    (root / "manifests").rename(tmp_path / "elsewhere")
    (root / "configs").unlink()
    (root / "configs").symlink_to(tmp_path / "elsewhere")
    assert "is outside the git repository" in versioned.doit("plan", "--since", "v1").err


def test_since_a_revision_nothing_is_written_through_a_link_out_of_the_folder(
    versioned: ProjectFolder, tmp_path: Path
) -> None:
    root, outside = versioned.root, tmp_path / "outside"
    outside.mkdir()
    (root / "extra").symlink_to(outside)
    (root / "configs/loop.yaml").symlink_to("loop.yaml")
    commit(root, "links")
    (root / "extra").unlink()
    (root / "extra").mkdir()
    (root / "extra/w.pth").write_bytes(b"ignored by git")
    assert versioned.doit("plan", "--since", "HEAD").out.endswith("): no differences\n")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("revision", ["v9", "", "--all", "HEAD~99", "v1:configs", "a b"])
def test_a_revision_that_does_not_exist(versioned: ProjectFolder, revision: str) -> None:
    wrong = versioned.doit("plan", f"--since={revision}")
    assert (wrong.code, wrong.out) == (3, "")
    assert (
        wrong.err
        == f"ERROR: git knows no revision {revision!r}; `git log` and `git tag` list revisions\n"
    )
    assert leftovers(versioned) == []


def test_a_folder_that_is_no_git_repository(project: ProjectFolder) -> None:
    project.add_model("lin")
    project.environment["GIT_CEILING_DIRECTORIES"] = str(project.root.parent)
    wrong = project.doit("plan", "--since", "HEAD")
    assert (wrong.code, wrong.out) == (3, "")
    assert wrong.err == f"ERROR: {project.root} is not in a git repository\n"


def test_a_repository_without_commits_and_a_machine_without_git(
    project: ProjectFolder, tmp_path: Path
) -> None:
    project.add_model("lin")
    git(project.root, "init", "-q")
    wrong = project.doit("plan", "--since", "HEAD")
    assert (wrong.code, wrong.err.startswith("ERROR: git knows no revision 'HEAD'")) == (3, True)
    project.environment["PATH"] = str(tmp_path)
    wrong = project.doit("plan", "--since", "HEAD")
    assert (wrong.code, wrong.err) == (3, "ERROR: `--since` needs git, which is not installed\n")


def test_a_revision_without_manifests(versioned: ProjectFolder) -> None:
    git(versioned.root, "rm", "-rq", "--cached", "configs")
    git(versioned.root, "commit", "-qm", "no configs")
    wrong = versioned.doit("plan", "--since", "HEAD")
    assert (wrong.code, wrong.out) == (3, "")
    assert wrong.err == "ERROR: HEAD has no manifests: no folder configs/models\n"


def test_a_revision_whose_manifests_are_wrong(versioned: ProjectFolder) -> None:
    versioned.edit("configs/models/lin.yaml", "opset: 17", "opset: 99")
    commit(versioned.root, "wrong")
    versioned.edit("configs/models/lin.yaml", "opset: 99", "opset: 17")
    wrong = versioned.doit("plan", "--since", "HEAD")
    assert (wrong.code, wrong.out) == (3, "")
    first, second = wrong.err.splitlines()
    assert first == "ERROR: 1 error in the manifests of HEAD"
    assert second.startswith("configs/models/lin.yaml:6:")


def test_a_git_hook_may_ask(versioned: ProjectFolder) -> None:
    """Git sets variables for its hooks that would point to another repository."""
    versioned.edit("configs/models/lin.yaml", "opset: 17", "opset: 18")
    versioned.environment |= {
        "GIT_DIR": str(versioned.root / ".git"),
        "GIT_INDEX_FILE": "/nonexistent/index",
    }
    assert "export:lin" in texts(versioned, "plan", "--since", "v1")
