"""Garbage collection follows inputs: it keeps exactly the builds that could be restored."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_project import ALL, EXPORT, actions, build, stale

from buildsys.execution import action_key, key_parts
from buildsys.execution.build_cache import planned_builds
from buildsys.plan.action import Action
from buildsys.store.garbage_collection import Collection, collect
from buildsys.store.ledger import ActionRecord, Ledger
from buildsys.store.object_store import Store
from buildsys.store.state_db import ReadOnlyStateDb


def collect_garbage(
    root: Path, *graphs: Mapping[str, Action], max_bytes: int | None = None
) -> Collection:
    """Collect as ``buildsys cache gc`` does for the plans ``graphs``."""
    plans = [planned_builds(root, root / "build", graph) for graph in graphs]
    ledger = Ledger(ReadOnlyStateDb(root / ".buildsys/state.db"))

    def reached(stored: Sequence[ActionRecord]) -> set[tuple[str, str]]:
        def records(target: str) -> list[ActionRecord]:
            return [*(r for r in stored if r.target == target), *ledger.records(target)]

        return {name for plan in plans for name in plan.matching(records)}

    return collect(
        Store(root / ".buildsys/store"),
        unused_for_s=None,
        max_bytes=max_bytes,
        reached=reached,
        dry_run=False,
    )


def test_plans_are_compared_without_reading_our_code_and_libraries(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    (root / "net.py").write_text("import blocks, numpy\n")
    for module, name in ((action_key, "own_code"), (key_parts, "package_identities")):
        monkeypatch.setattr(module, name, refuse)
    graph = {name: replace(one, tools=("numpy",)) for name, one in actions().items()}
    found = planned_builds(root, root / "build", graph)
    assert {label for label, _ in found.parts[EXPORT]} >= {
        "config:export.opset", "source:net.py", "source:blocks.py", "inputs", "outputs",
    }  # fmt: skip


def stored(root: Path) -> Counter[str]:
    return Counter(found.record.target for found in Store(root / ".buildsys/store").actions())


def test_superseded_builds_of_every_stage_are_removed(root: Path) -> None:
    for width in range(8):  # reaches the engine, bench and report through their inputs only
        (root / "blocks.py").write_text(f"width = {width}\n")
        build(root)
    assert stored(root) == dict.fromkeys(ALL, 8)
    assert len(collect_garbage(root, actions()).actions) == 7 * len(ALL)
    assert stored(root) == dict.fromkeys(ALL, 1)
    assert stale(root) == []
    shutil.rmtree(root / "build")
    assert build(root) == []


def test_builds_of_every_kept_plan_remain(root: Path) -> None:
    for opset in (16, 17, 18):
        build(root, actions(opset))
    collect_garbage(root, actions(16), actions(18))
    assert stored(root) == dict.fromkeys(ALL, 2)
    for opset in (16, 18):
        shutil.rmtree(root / "build")
        assert build(root, actions(opset)) == []


def test_an_upstream_build_may_be_in_the_build_folder_only(root: Path) -> None:
    build(root)
    store = Store(root / ".buildsys/store")
    for found in store.actions():
        if found.record.target == EXPORT:
            found.path.unlink()
    collect_garbage(root, actions())
    (root / "build/m/engine/e/engine.bin").unlink()
    assert build(root) == []
