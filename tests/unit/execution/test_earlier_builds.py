"""Earlier builds of an engine that a stage may refit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiny_project import ENGINE, EXPORT, actions, make_executor

from buildsys.plan.action import Action


def graph(*, refits: bool = True, **options: Any) -> dict[str, Action]:
    found = actions()
    changed = replace(found[ENGINE], refits=refits, options={"engine": options})
    return {**found, ENGINE: changed}


def offered(root: Path, wanted: dict[str, Action], *, force: bool = False) -> list[str]:
    """Build the engine; return the engines that its stage could refit."""
    executor, pool = make_executor(root, wanted)
    seen: list[Sequence[Any]] = []
    pool.meanwhile = lambda job: seen.append(job.earlier)
    executor.run(EXPORT)
    seen.clear()
    executor.run(ENGINE, force=force)
    executor.close()
    ((*found,),) = seen
    assert all(Path(files["result"]).is_file() for files in found)
    return [Path(files["engine"]).read_text() for files in found]


def change(root: Path, width: int) -> str:
    """Change the model, as new weights do; return what its engine contains."""
    (root / "blocks.py").write_text(f"width = {width}\n")
    return f"engine of opset 17: import blocks width = {width}"


def test_earlier_engines_of_other_graphs_are_offered_newest_first(root: Path) -> None:
    first = change(root, 1)
    assert offered(root, graph()) == []
    second = change(root, 2)
    assert offered(root, graph()) == [first]
    change(root, 3)
    assert offered(root, graph()) == [second, first]


def test_other_options_forced_runs_and_other_engines_build(root: Path) -> None:
    change(root, 1)
    offered(root, graph())
    change(root, 2)
    assert offered(root, graph(workspace=1)) == []
    change(root, 3)
    assert offered(root, graph(refits=False)) == []
    change(root, 4)
    assert offered(root, graph(), force=True) == []


def test_damaged_or_removed_engines_are_not_offered(root: Path) -> None:
    first = change(root, 1)
    offered(root, graph())
    second = change(root, 2)
    offered(root, graph())
    objects = {path.read_text(): path for path in (root / ".buildsys/store/objects").rglob("*/*")}
    objects[first].unlink()
    objects[second].chmod(0o644)
    objects[second].write_text(second.replace("engine", "ENGINE"))
    change(root, 3)
    assert offered(root, graph()) == []


def test_the_key_does_not_depend_on_them(root: Path) -> None:
    plain, _ = make_executor(root, graph(refits=False))
    refitting, _ = make_executor(root, graph())
    plain.run(EXPORT)
    plain.run(ENGINE)
    assert refitting.up_to_date_status(ENGINE)
    for executor in (plain, refitting):
        executor.close()
