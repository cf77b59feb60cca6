"""`doit cache gc` and `doit cache keygen` in real projects."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

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


def test_signed_results_of_another_machine_are_restored(
    project: ProjectFolder, tmp_path: Path
) -> None:
    project.add_model("lin")
    key = tmp_path / "key.pem"
    public = json.loads(project.doit("cache", "keygen", str(key), "--json").out)["public_key"]
    again = project.doit("cache", "keygen", str(key))
    assert (again.code, again.err) == (2, f"ERROR: cannot write {key}: File exists\n")
    settings = project.root / "configs/project.yaml"
    place = f"remote: {tmp_path}/shared"
    settings.write_text(f"cache: {{{place}, mode: read-write, signing_key: {key}}}\n")
    assert project.doit("export:lin").code == 0
    other = "ed25519:" + "A" * 43 + "="
    for trusted, restored in ((other, set()), (public, {"export:lin"})):
        for folder in ("build", ".buildsys"):
            shutil.rmtree(project.root / folder)
        settings.write_text(f"cache: {{{place}, trusted_keys: ['{trusted}']}}\n")
        ran = project.doit("export:lin")
        assert (ran.code, ran.restored) == (0, restored)
        assert ("is not signed by a trusted key; ignored" in ran.err) == (not restored)
    assert "1 trusted key, unsigned: refuse" in project.doit("doctor").out
    settings.write_text(f"cache: {{{place}, trusted_keys: ['{other}']}}\n")
    reason = "restored from a shared cache without a trusted signature"
    assert reason in project.doit("explain", "export:lin").out
    settings.write_text(f"cache: {{{place}, trusted_keys: [abc]}}\n")
    refused = project.doit("list")
    assert refused.code == 3
    assert "cache.trusted_keys.0: " in refused.err
    assert "a public key of `doit cache keygen`" in refused.err
