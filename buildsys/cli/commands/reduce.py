"""buildsys reduce: the smallest graph and inputs with which an engine still fails."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import add_json, add_names, print_answer, shown_path, typed_path
from buildsys.cli.session import BuildSession
from buildsys.cli.trials import describe_trials
from buildsys.cli.worker_pool import open_pool, run_job, show_progress
from buildsys.errors import StageError, UsageError, WorkerDied
from buildsys.execution.local_runs import hold_devices, stage_job
from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.plan.action import RESULT, Action
from buildsys.reduce.reproduction import as_json, is_reproduced, private_contents, write_scripts
from buildsys.reduce.search import CRASH, FACTS, Reduced, reduce_failure
from buildsys.report.formatting import plural
from buildsys.stages.table import CONVERT, ENGINE, VERIFY, target_of
from buildsys.store.locks import Locks
from buildsys.system.versions import tool_versions

SCHEMA = "buildsys/reduce/1"
_TRIAL = "buildsys.reduce.stage"
_TRIAL_LIMIT_S = 600.0


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys reduce``."""
    add_names(parser, "MODEL:ENGINE")
    text = "new folder for the reproduction; by default reduced-MODEL-ENGINE"
    parser.add_argument("--out", default="", help=text)
    parser.add_argument("--no-cures", action="store_true", help="do not try other manifests")
    add_json(parser)


def run(options: Namespace) -> int:
    """Write the reproduction; return 1 if nothing fails."""
    session = BuildSession.load(options.root)
    engine = session.actions[session.one_target("reduce", options.names)]
    _check(session, engine)
    name = f"{engine.model}:{engine.variant}"
    folder = typed_path(options.out or f"reduced-{name.replace(':', '-')}").absolute()
    if folder.exists():
        raise UsageError(f"{shown_path(folder)} exists", "name a new folder with --out")
    with TemporaryDirectory(prefix="buildsys-reduce-") as place:
        work = Path(place)
        reduced = _reduce(session, engine, work)
        folder.mkdir(parents=True)
        for file in ("model.onnx", "model.onnx.data", "inputs.npz", "expected.npz"):
            if (work / file).exists():
                (folder / file).write_bytes((work / file).read_bytes())
    cures = [] if options.no_cures else [*_cures(session, engine, reduced)]
    versions = tool_versions(("onnx", "onnxruntime", *engine.tools))
    settings, file = engine.options["engine"], PurePath(engine.outputs["engine"].path).name
    write_scripts(folder, name, settings, file, reduced, versions, cures)
    is_shown = is_reproduced(folder, reduced.failure)
    more = {"folder": str(folder), "cures": cures, "is_reproduced": is_shown}
    names = {"model": engine.model, "engine": engine.variant}
    document = {"schema": SCHEMA, **names, **as_json(reduced), **more}
    print_answer(options, document, _lines(name, reduced, document))
    session.close()
    return 0


def _check(session: BuildSession, engine: Action) -> None:
    """Refuse what cannot be reduced. Raises: UsageError."""
    if engine.stage != ENGINE or "model" not in engine.inputs or engine.toolchain:
        problem = f"{engine.target} is not an engine that this interpreter builds from ONNX"
        raise UsageError(problem, "name MODEL:ENGINE of such an engine")
    if {"batches", "nodes"} & engine.inputs.keys():
        problem = f"the builder of {engine.target} chooses the precision of each layer itself"
        raise UsageError(problem, "reduce an engine without calibration or search by its builder")
    verify = session.actions[target_of(VERIFY, engine.model, engine.variant)]
    needed = [target for target in (*engine.after, *verify.after) if target != engine.target]
    session.require_fresh([*dict.fromkeys(needed)], " ".join(dict.fromkeys(needed)))


def _reduce(session: BuildSession, engine: Action, work: Path) -> Reduced:
    """Run all trials, each in a process of its own: a library may crash."""
    project, verify = session.project, session.actions[target_of(VERIFY, *_names(engine))]
    build = project.build
    inputs = {role: build / ref.path for role, ref in verify.inputs.items()}
    cases = {
        role.partition(".")[2]: path
        for role, path in inputs.items()
        if role.startswith("case.") and path.exists()
    }
    precision = target_of(CONVERT, engine.model, engine.options["engine"]["precision"])
    exact = {}
    if precision in engine.after:
        exact["exact"] = build / session.actions[precision].inputs["model"].path
    with (
        open_pool(project.state) as pool,
        hold_devices(
            Locks(project.state / "locks"), engine, f"reduce {engine.target}", _wait
        ) as held,
    ):

        def attempt(case: str, nodes: Sequence[int] | None, random: Sequence[str]) -> Any:
            job = stage_job(engine, project.root, build, {RESULT: work / "result.json"})
            options = {
                **verify.options, **engine.options, "nodes": nodes, "random": random,
                "file": PurePath(engine.outputs["engine"].path).name,
            }  # fmt: skip
            files = {**job.inputs, **exact, "case": cases[case]}
            if "assembled" in inputs and inputs["assembled"].exists():
                files["assembled"] = inputs["assembled"]
            job = replace(job, stage=_TRIAL, options=options, inputs=files, **held)
            what = "the whole graph" if nodes is None else plural(len(nodes), "node")
            show_progress({"message": f"case {case}: trying {what}"})
            try:
                return run_job(pool, job)
            except WorkerDied as error:
                failure = {"kind": CRASH, "text": error.problem, "hint": error.hint}
                return {**json.loads((work / FACTS).read_bytes()), "failure": failure}
            except StageError as error:
                if nodes is None:
                    raise
                return {"failure": None, "nodes": [], "text": error.problem}

        return reduce_failure([*cases], attempt)


def _names(engine: Action) -> tuple[str, str]:
    return engine.model, engine.variant


def _cures(session: BuildSession, engine: Action, reduced: Reduced) -> Iterator[str]:
    """Try other manifests, and repeat what the library's refusal suggests."""
    failed, problem = session.actions[target_of(VERIFY, *_names(engine))], reduced.failure["text"]
    if engine.options["engine"]["precision"] == "fp32":
        with session.executor.private_folder(engine.model) as folder:
            if text := describe_trials(session, failed, problem, OTHER_EXPORTS, folder):
                yield text
    if hint := reduced.failure["hint"]:
        yield hint


def _wait(holder: str) -> None:
    sys.stderr.write(f"waiting for {holder or 'other targets'}\n")


def _lines(name: str, reduced: Reduced, document: Mapping[str, Any]) -> Iterator[str]:
    yield f"{name}, case {reduced.case}: {reduced.failure['text']}"
    count = len(reduced.last["nodes"])
    yield f"{count} of {plural(reduced.total, 'node')} still fail, after {reduced.trials} trials:"
    yield from (f"  {operator} {node}" for node, operator in reduced.last["nodes"][:10])
    yield private_contents(reduced)
    yield from document["cures"]
    shown = "fails in the same way" if document["is_reproduced"] else "does not fail in this way"
    yield f"{shown_path(document['folder'])}/repro.py {shown} here"
