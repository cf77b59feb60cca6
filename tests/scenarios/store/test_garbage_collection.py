"""`doit cache gc` follows inputs to the builds of every stage."""

from __future__ import annotations

import json
import shutil
from collections import Counter

from command_answers import commit, git
from project_folder import ProjectFolder

from buildsys.store.object_store import Store


def stored(project: ProjectFolder) -> Counter[str]:
    store = Store(project.root / ".buildsys/store")
    return Counter(found.record.target for found in store.actions())


def test_only_builds_of_the_present_manifests_and_kept_revisions_stay(
    project: ProjectFolder,
) -> None:
    project.add_model("lin")
    git(project.root, "init", "-q")
    commit(project.root, "zero")
    targets = ("engine:lin:ort", "validate:lin")
    for seed in (1, 2):
        assert project.doit(*targets).code == 0
        project.edit("plugins/models/small.py", f"manual_seed({seed - 1})", f"manual_seed({seed})")
    assert project.doit(*targets).code == 0
    assert stored(project)["engine:lin:ort"] == 3
    found = json.loads(project.doit("cache", "gc", "--keep-refs", "HEAD", "--json").out)
    assert set(found["actions"]) >= {"engine:lin:ort", "simplify:lin", "validate:lin"}
    assert set(stored(project).values()) == {2}
    project.doit("cache", "gc", "--max-size", "1kB")
    assert set(stored(project).values()) == {1}
    shutil.rmtree(project.root / "build")
    ran = project.doit(*targets)
    assert ran.code == 0
    assert ran.restored >= set(targets)
