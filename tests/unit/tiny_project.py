"""A project of four tiny stages, run in this process; as a program, in a separate one.

export:m reads the user's source net.py with its imports, engine:m:e reads the export, bench:m:e and
report:m read the engine. A file ``do-TARGET`` changes the behaviour of a stage.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from buildsys.errors import CheckFailed, StageError, Unavailable, WorkerDied
from buildsys.execution import action_key
from buildsys.execution.executor import Executor
from buildsys.execution.freshness import FreshnessChecker, read_only_checker
from buildsys.execution.local_runs import Folders
from buildsys.plan.action import Action, BaselineRef, FileRef
from buildsys.store.file_digests import DigestCache
from buildsys.store.object_store import Store
from buildsys.store.state_db import StateDb
from buildsys.workers.job import Job
from buildsys.workers.pool import JobReply
from buildsys.workers.result_file import without_long_lists

EXPORT, ENGINE, BENCH, REPORT = "export:m", "engine:m:e", "bench:m:e", "report:m"
ALL = [EXPORT, ENGINE, BENCH, REPORT]
GATE = "gate:m:e"  # only in `gated_actions`
MODEL = "m/export/model.onnx"
CODE_ROOT = action_key._CODE_ROOT  # which tests replace to change our own code


def make_project(root: Path) -> Path:
    """Write the user's sources into a new folder."""
    root.mkdir()
    (root / "net.py").write_text("import blocks\n")
    (root / "blocks.py").write_text("width = 1\n")
    return root


def actions(opset: int = 17, duration: float = 1.0, required: bool = False) -> dict[str, Action]:
    model, engine = FileRef("m/export/model.onnx"), FileRef("m/engine/e/engine.bin", optional=True)
    data = FileRef("m/export/model.onnx.data", optional=True)

    def action(target: str, **fields: Any) -> Action:
        stage, name, *variant = target.split(":")
        return Action(
            target=target,
            stage=stage,
            model=name,
            variant="".join(variant),
            code=("buildsys.errors",),
            **fields,
        )

    found = [
        action(
            EXPORT,
            options={"export": {"opset": opset}},
            inputs={},
            outputs={"model": model, "model.data": data, "result": FileRef("m/export/export.json")},
            sources=("net.py",),
        ),
        action(
            ENGINE,
            options={"engine": {}},
            required=required,
            inputs={"model": model, "model.data": data},
            outputs={"engine": engine, "result": FileRef("m/engine/e/engine.json")},
            after=(EXPORT,),
        ),
        action(
            BENCH,
            options={"duration": duration},
            inputs={"engine": engine},
            outputs={"result": FileRef("m/bench/e.json")},
            after=(ENGINE,),
            measures=True,
            exclusive=True,
        ),
        action(
            REPORT,
            options={},
            inputs={ENGINE: FileRef("m/engine/e/engine.json"), BENCH: FileRef("m/bench/e.json")},
            outputs={"result": FileRef("m/report/report.json")},
            after=(ENGINE, BENCH),
        ),
    ]
    return {item.target: item for item in found}


def gated_actions(opset: int, options: dict[str, Any], **fields: Any) -> dict[str, Action]:
    """Return export, engine and a gate that compares the engine with its baseline."""
    found = actions(opset=opset)
    engine = found[ENGINE].outputs["engine"]
    gate = Action(
        target=GATE,
        stage="gate",
        model="m",
        variant="e",
        options={"tolerance": 0.05, **options},
        inputs={"engine": engine},
        outputs={"result": FileRef("m/gate/e.json")},
        after=(ENGINE,),
        baseline=BaselineRef(engine.path, ENGINE),
        measures=True,
        **fields,
    )
    return {EXPORT: found[EXPORT], ENGINE: found[ENGINE], GATE: gate}


CHANGES = ("export: {opset: 18}",)  # proposed by every failure


class InlinePool:
    """Runs stages in the calling thread and records them."""

    def __init__(self, root: Path) -> None:
        self.ran: list[str] = []
        self.meanwhile: Callable[[Job], None] = lambda job: None
        self._root = root

    def run(
        self, job: Job, *, log: Path, timeout_s: float | None = None, on_event: Any = None
    ) -> JobReply:
        self.ran.append(job.target)
        log.write_text(f"log of {job.target}\n")
        on_event({"event": "progress", "message": "at work"})
        self.meanwhile(job)
        with (self._root / "runs.txt").open("a") as runs:
            runs.write(job.target + "\n")
        figures = STAGES[job.stage](job)
        return finish(job, "passed", "", figures, log)


def finish(job: Job, status: str, reason: str, figures: dict[str, Any], log: Path) -> JobReply:
    wanted = orders(job)
    if "die" in wanted:
        raise WorkerDied(f"the worker of {job.target} crashed")
    if "break" in wanted:
        raise StageError(f"{job.target} broke", changes=CHANGES)
    if "fail" in wanted:
        status, reason = "failed", "numbers differ"
        (job.outputs["result"].parent / "worst.npy").write_text("failing tensor")
    if "unavailable" in wanted:
        status, reason = "unavailable", "no GPU"
        job.outputs.get("engine", Path("/nonexistent/file")).unlink(missing_ok=True)
    if "noise" in wanted:
        status, reason = "noisy", "a busy neighbor"
    if "silent" not in wanted:
        result = {"status": status, "reason": reason, "started": time.time_ns(), **figures}
        job.outputs["result"].write_text(json.dumps(result))
    if "raise" in wanted:
        raise (CheckFailed if status == "failed" else Unavailable)(reason, "do something")
    hint, replied = "do something" if reason else "", without_long_lists(figures)
    return JobReply(status, reason, hint, replied, 0.25, changes=CHANGES)


def orders(job: Job) -> list[str]:
    path = job.project / f"do-{job.target}"
    return path.read_text().split() if path.exists() else []


def export(job: Job) -> dict[str, Any]:
    source = (job.project / "net.py").read_text() + "".join(
        path.read_text() for path in sorted(job.project.glob("blocks.py"))
    )
    code = " ".join(line for line in source.splitlines() if not line.startswith("#"))
    job.outputs["model"].write_text(f"opset {job.options['export']['opset']}: {code}")
    if "external" in orders(job):
        job.outputs["model.data"].write_text("weights")
    if "profile" in orders(job):
        (job.outputs["result"].parent / "a-profile.txt").write_text("an additional file")
    if "half" in orders(job):
        job.outputs["model"].unlink()
    if "slow" in orders(job):
        time.sleep(0.5)
    return {
        "nodes": 3,
        "samples": list(range(1000)),
        "cases": [{"name": "opt", "raw": [0.1] * 500}],
    }


def engine(job: Job) -> dict[str, Any]:
    job.outputs["engine"].write_text(f"engine of {job.inputs['model'].read_text()}")
    return {"weights": job.inputs["model.data"].read_text() if "model.data" in job.inputs else None}


def bench(job: Job) -> dict[str, Any]:
    return {"engine": job.inputs["engine"].read_text() if "engine" in job.inputs else None}


def report(job: Job) -> dict[str, Any]:
    return {"engine": json.loads(job.inputs[BENCH].read_text())["engine"]}


STAGES: dict[str, Callable[[Job], dict[str, Any]]] = {
    "export": export,
    "engine": engine,
    "bench": bench,
    "report": report,
}


def make_executor(
    root: Path, graph: dict[str, Action] | None = None, **options: Any
) -> tuple[Executor, InlinePool]:
    pool = InlinePool(root)
    graph = graph if graph is not None else actions()
    options.setdefault("store", Store(root / ".buildsys" / "store"))
    folders = Folders(root, root / "build", root / ".buildsys")
    executor = Executor(folders, graph, pool=pool, **options)
    share_loaded_code(executor._keys)
    return executor, pool


def make_checker(root: Path) -> FreshnessChecker:
    """Return a checker that writes nothing."""
    checker = read_only_checker(root, root / "build", root / ".buildsys")
    share_loaded_code(checker._keys)
    return checker


def share_loaded_code(keys: action_key.KeyBuilder) -> None:
    """Use the digests of our own modules that this process has taken already."""
    if action_key._CODE_ROOT == CODE_ROOT:
        vars(keys)["_loaded_code"] = loaded_code()


@cache
def loaded_code() -> tuple[action_key.Files, str]:
    """Return the digests of our own modules: a project without them would read 550 files."""
    with tempfile.TemporaryDirectory() as folder:
        db = StateDb(Path(folder, "state.db"))
        found = action_key.KeyBuilder(Path(folder), Path(folder), DigestCache(db), db)._loaded_code
        db.close()
    return found


def build(root: Path, graph: dict[str, Action] | None = None) -> list[str]:
    """Build all stale targets in order, like doit; return them."""
    executor, pool = make_executor(root, graph)
    for target in graph or actions():
        if not executor.up_to_date_status(target):
            executor.run(target)
    executor.close()
    return pool.ran


def kill_after_first_rename(executor: Executor) -> None:
    place = os.replace

    def replace_and_die(*names: str, **folders: int) -> None:
        place(*names, **folders)
        os.kill(os.getpid(), 9)

    os.replace = replace_and_die  # type: ignore[assignment]


def order(root: Path, target: str, *words: str) -> None:
    """Change the behaviour of a stage."""
    (root / f"do-{target}").write_text(" ".join(words))


def published(root: Path) -> dict[str, str]:
    build_folder = root / "build"
    files = (path for path in build_folder.rglob("*") if path.is_file() and path.suffix != ".log")
    return {path.relative_to(build_folder).as_posix(): path.read_text() for path in files}


def stale(root: Path, graph: Any = None) -> list[str]:
    executor, _ = make_executor(root, graph)
    return [target for target in graph or actions() if not executor.up_to_date_status(target)]


if __name__ == "__main__":
    root, opset, *flags = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    executor, pool = make_executor(root, actions(opset))
    if "kill" in flags:
        kill_after_first_rename(executor)
    for target in (EXPORT, ENGINE):
        if not executor.up_to_date_status(target):
            outcome = executor.run(target)
            print(target, "waited" if outcome.waited else "ran", flush=True)
