"""`buildsys cache gc` and `buildsys cache keygen` in real projects."""

import json
import shutil
from collections import Counter
from pathlib import Path

from command_answers import commit, git
from project_folder import ProjectFolder
from ready_project import VALUES, ReadyProject

from buildsys.store.object_store import Store


def stored(project: ProjectFolder) -> Counter[str]:
    store = Store(project.root / ".buildsys/store")
    return Counter(found.record.target for found in store.actions())


def test_only_builds_of_the_present_manifests_and_kept_revisions_stay(
    ready: ReadyProject,
) -> None:
    git(ready.root, "init", "-q")
    commit(ready.root, "zero")
    targets = ("engine:a:ort", "validate:a")
    for seed in (1, 2):
        assert ready.doit(*targets).code == 0
        ready.write_network(seed)
        ready.edit(VALUES, f"SCALE = {seed}.0", f"SCALE = {seed + 1}.0")
    assert ready.doit(*targets).code == 0
    assert stored(ready)["engine:a:ort"] == 3
    found = json.loads(ready.buildsys("cache", "gc", "--keep-refs", "HEAD", "--json").out)
    assert set(found["actions"]) >= {"engine:a:ort", "simplify:a", "validate:a"}
    assert set(stored(ready).values()) == {2}
    ready.buildsys("cache", "gc", "--max-size", "1kB")
    assert set(stored(ready).values()) == {1}
    shutil.rmtree(ready.root / "build")
    ran = ready.doit(*targets)
    assert ran.code == 0
    assert ran.restored >= set(targets)


def test_signed_results_of_another_machine_are_restored(
    ready: ReadyProject, tmp_path: Path
) -> None:
    key = tmp_path / "key.pem"
    public = json.loads(ready.buildsys("cache", "keygen", str(key), "--json").out)["public_key"]
    again = ready.buildsys("cache", "keygen", str(key))
    assert (again.code, again.err) == (
        2,
        f"ERROR: cannot write {key}: File exists; name another file\n",
    )
    settings = ready.root / "configs/project.yaml"
    place = f"remote: {tmp_path}/shared"
    settings.write_text(f"cache: {{{place}, mode: read-write, signing_key: {key}}}\n")
    assert ready.doit("export:a").code == 0
    other = "ed25519:" + "A" * 43 + "="
    for trusted, restored in ((other, set()), (public, {"export:a"})):
        for folder in ("build", ".buildsys"):
            shutil.rmtree(ready.root / folder)
        settings.write_text(f"cache: {{{place}, trusted_keys: ['{trusted}']}}\n")
        ran = ready.doit("export:a")
        assert (ran.code, ran.restored) == (0, restored)
        assert ("is not signed by a trusted key, but by ed25519:" in ran.err) == (not restored)
    settings.write_text(f"cache: {{{place}, trusted_keys: ['{other}']}}\n")
    reason = "restored from a shared cache without a trusted signature"
    assert reason in ready.buildsys("explain", "export:a").out
    settings.write_text(f"cache: {{{place}, trusted_keys: [abc]}}\n")
    refused = ready.doit("list")
    assert refused.code == 3
    assert "cache.trusted_keys.0: " in refused.err
    assert "a public key of `buildsys cache keygen`" in refused.err
