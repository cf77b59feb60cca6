"""buildsys reduce: the smallest graph and inputs with which an engine still fails."""

import json
import os
import shutil
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
from buildsys.manifest.exports import KEEP_GRAPH, OTHER_EXPORTS
from buildsys.plan.action import RESULT, Action
from buildsys.reduce.reproduction import is_reproduced, private_contents, write_reproduction
from buildsys.reduce.search import CRASH, FACTS, Reduced, reduce_failure
from buildsys.report.formatting import plural
from buildsys.stages.table import ENGINE, VERIFY, target_of
from buildsys.store.locks import Locks
from buildsys.system.backend_registry import describe_backend
from buildsys.system.toolchains import locate_toolchain
from buildsys.system.versions import tool_versions
from buildsys.workers.launch import server_environment

SCHEMA = "buildsys/reduce/1"
_CUT, _TRIAL = "buildsys.reduce.cut", "buildsys.reduce.stage"
_FILES = ("model.onnx", "model.onnx.data", "inputs.npz", "expected.npz")
_OTHER_BACKENDS = ("onnxruntime", "openvino")  # that run anywhere
_SHOWN_NODES = 10


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys reduce``."""
    add_names(parser, "MODEL:ENGINE")
    text = "new folder for the reproduction; by default reduced-MODEL-ENGINE"
    parser.add_argument("--out", default="", help=text)
    add_json(parser)


def run(options: Namespace) -> int:
    """Write the reproduction; fail if nothing fails."""
    session = BuildSession.load(options.root)
    engine = session.actions[session.one_target("reduce", options.names)]
    name = f"{engine.model}:{engine.variant}"
    verify = session.actions.get(target_of(VERIFY, engine.model, engine.variant))
    if engine.stage != ENGINE or "model" not in engine.inputs or not verify:
        problem = f"{engine.target} is not an engine built from ONNX"
        raise UsageError(problem, "name MODEL:ENGINE of such an engine")
    if {"batches", "nodes"} & engine.inputs.keys():
        problem = f"the builder of {name} chooses the precision of each layer itself"
        raise UsageError(problem, "reduce an engine without calibration or search by its builder")
    needed = [*dict.fromkeys((*engine.after, *verify.after))]
    needed.remove(engine.target)
    session.require_fresh(needed, " ".join(needed))
    folder = typed_path(options.out or f"reduced-{name.replace(':', '-')}").absolute()
    if folder.exists():
        raise UsageError(f"{shown_path(folder)} exists", "name a new folder with --out")
    file = PurePath(engine.outputs["engine"].path).name
    with TemporaryDirectory(prefix="buildsys-reduce-") as place:
        reduced = _reduce(session, engine, verify, file, Path(place))
        folder.mkdir(parents=True)
        for source in filter(Path.exists, (Path(place, name) for name in _FILES)):
            shutil.copyfile(source, folder / source.name)
    cures = [*_cures(session, verify, reduced)]
    toolchain = engine.toolchain and locate_toolchain(
        *engine.toolchain, session.project.root, os.environ
    )
    versions = tool_versions(("onnx", "onnxruntime")) | tool_versions(engine.tools, toolchain)
    python = str(toolchain.python) if toolchain else sys.executable
    environment = server_environment(session.project.state / "workers", os.environ, toolchain)
    write_reproduction(folder, name, engine.options["engine"], file, reduced, versions, cures)
    document = {
        "schema": SCHEMA, "model": engine.model, "engine": engine.variant, "case": reduced.case,
        "failure": dict(reduced.failure), "nodes_before": reduced.total,
        "nodes": reduced.last["nodes"], "random": reduced.random, "trials": reduced.trials,
        "folder": str(folder), "cures": cures,
        "is_reproduced": is_reproduced(folder, reduced.failure, environment, python),
    }  # fmt: skip
    print_answer(options, document, _lines(name, reduced, document))
    session.close()
    return 0


def _reduce(
    session: BuildSession, engine: Action, verify: Action, file: str, work: Path
) -> Reduced:
    """Run all trials, each in processes of its own: a library may crash."""
    project, build = session.project, session.project.build
    checked = {role: build / ref.path for role, ref in verify.inputs.items()}
    files = {role: path for role, path in checked.items() if role == "assembled" and path.exists()}
    cases = {
        role.partition(".")[2]: path
        for role, path in checked.items()
        if role.startswith("case.") and path.exists()
    }
    locks, name = Locks(project.state / "locks"), f"reduce {engine.target}"
    with open_pool(project.state) as pool, hold_devices(locks, engine, name) as held:

        def attempt(case: str, nodes: Sequence[int] | None, random: Sequence[str]) -> Any:
            trial = {"nodes": nodes, "random": random, "file": file}
            job = stage_job(engine, project.root, build, {RESULT: work / "result.json"})
            inputs = {**job.inputs, **files, "case": cases[case]}
            options = {**verify.options, **engine.options, **trial}
            job = replace(job, stage=_TRIAL, options=options, inputs=inputs, **held)
            cut = replace(job, stage=_CUT, in_own_interpreter=True)
            what = "the whole graph" if nodes is None else plural(len(nodes), "node")
            show_progress({"message": f"case {case}: trying {what}"})
            try:
                run_job(pool, cut)
            except StageError:  # no reference for this part
                if nodes is None:
                    raise
                return {"failure": None}
            try:
                return run_job(pool, job)
            except WorkerDied as error:
                failure = {"kind": CRASH, "text": error.problem, "hint": error.hint}
                return {**json.loads((work / FACTS).read_bytes()), "failure": failure}

        return reduce_failure([*cases], attempt)


def _cures(session: BuildSession, verify: Action, reduced: Reduced) -> Iterator[str]:
    """Try changes of the manifest, and repeat what is known about the failure."""
    with session.executor.private_folder(verify.model) as folder:
        changes = [*_changes(session, verify, reduced)]
        if text := describe_trials(session, verify, reduced.failure["text"], changes, folder):
            yield text
    if hint := reduced.failure["hint"]:
        yield hint


def _changes(session: BuildSession, verify: Action, reduced: Reduced) -> Iterator[str]:
    """Yield changes that may help: other nodes, then another backend."""
    options, name = verify.options["engine"], verify.variant
    backend, precision = options["backend"], options["precision"]
    if precision == "fp32":
        if remedy := describe_backend(backend).exact_float32(options):
            place = f", toolchain: {verify.toolchain.name}" if verify.toolchain else ""
            yield f"engines: [{{backend: {backend}, name: {name}, {remedy}{place}}}]"
        yield from (*KEEP_GRAPH, *OTHER_EXPORTS)
    else:
        section = "convert" if precision in ("fp16", "bf16") else "quantize"
        present = session.project.models[verify.model].data[section]["exclude"]
        nodes = [*present, *(node for node, _ in reduced.last["nodes"])]
        yield f"{section}: {{exclude: {json.dumps(nodes, ensure_ascii=False)}}}"
    for other in _OTHER_BACKENDS:
        if other != backend:
            yield f"engines: [{{backend: {other}, name: {name}, precision: {precision}}}]"


def _lines(name: str, reduced: Reduced, document: Mapping[str, Any]) -> Iterator[str]:
    nodes = reduced.last["nodes"]
    yield f"{name}, case {reduced.case}: {reduced.failure['text']}"
    total = plural(reduced.total, "node")
    yield f"{len(nodes)} of {total} still fail, after {reduced.trials} trials:"
    yield from (f"  {operator} {node}" for node, operator in nodes[:_SHOWN_NODES])
    yield from (private_contents(reduced), *document["cures"])
    shown = "fails in the same way" if document["is_reproduced"] else "does not fail in this way"
    yield f"{shown_path(document['folder'])}/repro.py {shown} here"
