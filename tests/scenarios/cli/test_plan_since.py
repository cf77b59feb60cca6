"""``buildsys plan --since`` with real git: what differs from a revision."""

from pathlib import Path

import pytest
from command_answers import answer, commit, git, texts
from project_folder import ProjectFolder
from test_doit import TARGETS

from buildsys.cli.commands.plan import changed_targets
from buildsys.cli.session import BuildSession
from buildsys.project.plan import model_of


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
    assert state["simplify:lin"] == "downstream"
    assert "reference:lin" not in state
    assert {target for target, found in state.items() if found == "added"} == {
        target.replace("lin", "new") for target in TARGETS
    }
    assert {target for target, found in state.items() if found == "removed"} == {
        target.replace("lin", "old") for target in TARGETS
    }
    shown = versioned.buildsys(
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
    assert versioned.buildsys("plan", "--since", "v1").out.endswith("): no differences\n")
    versioned.edit("configs/models/lin.yaml", "model: lin", "# a comment\nmodel: lin")
    assert versioned.buildsys("plan", "--since", "v1").out.endswith("): no differences\n")
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
    (root.parent / "shared").mkdir()
    (root.parent / "shared/small.py").write_bytes((root / "plugins/models/small.py").read_bytes())
    versioned.edit("configs/models/lin.yaml", "plugins/models/small", "../shared/small")
    commit(root, "three")
    assert versioned.buildsys("plan", "--since", "HEAD").out.endswith("): no differences\n")


def test_a_revision_that_does_not_exist_or_has_wrong_manifests(
    versioned: ProjectFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for revision in ("v9", "--all", "v1:configs"):
        wrong = versioned.buildsys("plan", f"--since={revision}")
        assert (wrong.code, wrong.out) == (3, "")
        problem = f"ERROR: git knows no revision {revision!r}; "
        assert wrong.err == f"{problem}`git log` and `git tag` list revisions\n"
    versioned.edit("configs/models/lin.yaml", "opset: 17", "opset: 99")
    commit(versioned.root, "wrong")
    versioned.edit("configs/models/lin.yaml", "opset: 99", "opset: 17")
    warning = "configs/models/lin.yaml of HEAD is broken; its models count as changed"
    plan = versioned.buildsys("plan", "--since", "HEAD")
    assert (plan.code, plan.err) == (0, f"buildsys: warning: {warning}\n")
    assert "added  export:lin" in plan.out
    assert leftovers(versioned) == []
    # what corrects a broken revision can be built
    changed = changed_targets(BuildSession.read_only(versioned.root), "HEAD")
    assert {model_of(target) for target in changed} == {"lin"}
    assert capsys.readouterr().err == f"buildsys: warning: {warning}\n"
