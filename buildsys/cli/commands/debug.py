"""buildsys debug: one stage in the foreground, or the nodes that make an engine inaccurate."""

import json
import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import (
    add_json,
    add_names,
    positive_integer,
    print_answer,
    print_lines,
    shown_path,
    typed_path,
)
from buildsys.cli.console.rows import format_table
from buildsys.cli.session import BuildSession
from buildsys.cli.worker_pool import open_pool, run_stage
from buildsys.errors import CheckFailed, UsageError, with_hint
from buildsys.execution.local_runs import hold_devices, stage_job
from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.plan.action import Action
from buildsys.plan.model_plan import FULL_PRECISION
from buildsys.report.formatting import duration, error, plural
from buildsys.stages.table import CONVERT, ENGINE, VERIFY, target_of
from buildsys.store.locks import Locks
from buildsys.store.state_db import warn_on_stderr
from buildsys.workers.job import Job

SCHEMA = "buildsys/localize/1"
_SEARCH = "buildsys.stages.search.stage"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys debug``."""
    add_names(parser, "TARGET | --fp32-nodes MODEL:ENGINE")
    parser.add_argument(
        "--pdb", action="store_true", help="open the Python debugger where an exception was raised"
    )
    parser.add_argument(
        "--keep", default="", help="new folder for the outputs; without it they are removed"
    )
    parser.add_argument(
        "--fp32-nodes",
        action="store_true",
        help="find the nodes that must stay in fp32 for an engine within its limits",
    )
    parser.add_argument(
        "--limit", type=positive_integer, default=600, help="--fp32-nodes: seconds for the search"
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Return 1 if the stage or the search has failed."""
    session = BuildSession.read_only(options.root)
    if options.fp32_nodes:
        return find_fp32_nodes(session, options)
    if options.json:
        raise UsageError("a stage in the foreground prints its log, not JSON", "leave out --json")
    action = session.actions[session.one_target("debug", options.names)]
    _check_inputs(session, action)
    destination = typed_path(options.keep).absolute() if options.keep else None
    if destination is not None and destination.exists():
        raise UsageError(f"--keep: {options.keep} exists", "name a new folder")
    with TemporaryDirectory(prefix="buildsys-debug-") as folder:
        outputs = Path(folder) / "outputs"
        job = _job(session, action, Path(folder), outputs)
        try:
            locks, state = Locks(session.project.state / "locks"), session.project.state
            name = f"debug {action.target}"
            with (
                hold_devices(locks, action, name) as held,  # as a build does
                open_pool(state) as pool,
            ):
                job = replace(job, **held)
                reply = pool.run(job, log=None, debugger=options.pdb)
        finally:
            if destination is not None:
                shutil.copytree(outputs, destination)
            place = (
                f"its outputs are in {shown_path(destination)}"
                if destination
                else "nothing was published"
            )
            print_lines([f"{action.target}: {place}"])
    reason = with_hint(reply.reason, reply.hint)
    took = f"{reply.status} after {duration(reply.seconds)}"
    print_lines(f"{action.target}: {took}{reason and ': '}{reason}".splitlines())
    if line := reply.figures.get("trtexec"):
        without = f" (without {', '.join(line['without_flag'])})" if line["without_flag"] else ""
        print_lines([f"the same build by TensorRT's program{without}:", line["command"]])
    return CheckFailed.exit_code if reply.status == "failed" else 0


def _check_inputs(session: BuildSession, action: Action) -> None:
    """Warn about stale inputs. Raises: UsageError: one does not exist."""
    for ref in action.inputs.values():
        path = session.project.build / ref.path
        if not ref.optional and not path.exists():
            problem = f"{action.target} needs {shown_path(path)}, which does not exist"
            raise UsageError(problem, f"run `buildsys build {' '.join(action.after)}` first")
    try:
        session.require_fresh(action.after, " ".join(action.after))
    except UsageError as error:
        warn_on_stderr(str(error))


def _job(session: BuildSession, action: Action, folder: Path, outputs: Path) -> Job:
    """Make a target's job, with its outputs in a temporary folder."""
    project = session.project
    paths = {role: outputs / ref.path for role, ref in action.outputs.items()}
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    caches, copied = project.timing_caches(), folder / "timing_caches"
    if action.stage == ENGINE and caches.is_dir():
        shutil.copytree(caches, copied)  # a build adds its timings
    roots = project.root, project.build
    job = stage_job(action, *roots, paths, timing_caches=copied, code=project.code)
    key = session.executor.examine(action.target).key if action.baseline else None
    return job if key is None else session.executor.here.add_baseline(job, action, key, folder)


def find_fp32_nodes(session: BuildSession, options: Namespace) -> int:
    """Print a list of nodes for the manifest; return 1 if none was found.

    ``options`` has ``names`` (one MODEL:ENGINE), ``limit`` (seconds) and ``json``.
    """
    engine = session.actions[session.one_target("debug --fp32-nodes", options.names)]
    convert = _conversion(session, engine)
    answer = _search(session, convert, engine, options.limit)
    names = {"model": engine.model, "engine": engine.variant, "precision": convert.variant}
    yaml = "\n".join(_yaml(convert, answer)) if answer["nodes"] else None
    document = {"schema": SCHEMA, **names, **answer, "yaml": yaml}
    print_answer(options, document, _lines(document))
    return 1 if answer["nodes"] is None else 0


def _conversion(session: BuildSession, engine: Action) -> Action:
    """Find the conversion whose graph the engine is built from.

    Raises: UsageError: it has none whose nodes can be searched, or its inputs are not up to date.
    """
    model, name = engine.model, f"{engine.model}:{engine.variant}"
    engines = session.project.models[model].data["engines"]
    spec: dict[str, Any] = next((e for e in engines if e["name"] == engine.variant), {})
    precision = base_precision(spec) if spec else FULL_PRECISION
    if precision == FULL_PRECISION:
        problem = f"{name} is not an engine of low precision, so no node is rounded"
        raise UsageError(problem, f"`buildsys debug {VERIFY}:{name}` repeats its check")
    target = target_of(CONVERT, model, precision)
    options = session.actions[target].options if target in engine.after else {}
    tools = {options.get("tool"), options.get("quantize", {}).get("tool")}
    has_own_nodes = tools & {"autocast", "modelopt"} or precision == "int4"
    has_own_nodes = has_own_nodes or spec.get("optimized") or spec.get("quantization") == "dynamic"
    if not options or is_auto(spec) or has_own_nodes:
        problem = f"the builder of {name} or a tool chooses the precision of each layer itself"
        raise UsageError(problem, "set typing: strong or quantization: explicit, and tool: builtin")
    session.require_fresh(session.actions[target].after, target)
    return session.actions[target]


def _search(session: BuildSession, convert: Action, engine: Action, limit: int) -> dict[str, Any]:
    """Search in a worker, outside the build folder."""
    project = session.project
    verify = session.actions[target_of(VERIFY, engine.model, engine.variant)]
    inputs = {role: project.build / ref.path for role, ref in convert.inputs.items()}
    tolerance = {"tolerance": verify.options["tolerance"], "limit_s": limit}
    target = f"localize:{convert.model}:{convert.variant}"
    result = run_stage(project, _SEARCH, target, {**convert.options, **tolerance}, inputs)
    fields = ("without", "with", "nodes", "is_smallest", "trials", "exclude", "seconds")
    answer = {name: result[name] for name in fields}
    return {**answer, "nodes": None} if result["is_fp32"] else answer


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    name = f"{answer['model']}:{answer['engine']}"
    nodes, without = answer["nodes"], answer["without"]
    if without["passed"]:
        yield f"{name}: the {answer['precision']} graph is within the limits; if verify"
        yield "fails, the error arises in the engine: its kernels or fusions"
        return
    yield f"{name}: {without['reason']}"
    effort = f"{plural(answer['trials'], 'trial')} in {answer['seconds']:.0f} s"
    if nodes is None:
        yield f"no list of nodes was found within the limits ({effort})"
        yield "raise --limit, choose another precision, or raise the limits of verify"
        return
    fewest = "none of which can be left out" if answer["is_smallest"] else "perhaps not the fewest"
    relative = f"the relative error is {error(answer['with']['relative'])} ({effort}):"
    yield f"with {plural(len(nodes), 'node')} in fp32, {fewest}, {relative}"
    yield from format_table(("node", "operator"), nodes)
    yield from ("for the manifest:", *answer["yaml"].splitlines())


def _yaml(convert: Action, answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section with the present patterns and the new nodes."""
    yield "quantize:" if "quantize" in convert.options else "convert:"
    yield "  exclude:"
    for pattern in (*answer["exclude"], *(name for name, _ in answer["nodes"])):
        yield f"    - {json.dumps(pattern, ensure_ascii=False)}"  # JSON strings are YAML
