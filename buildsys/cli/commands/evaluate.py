"""buildsys evaluate: the accuracy of built engines on other data, outside the build."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import add_json, add_names, print_answer, project_name, typed_path
from buildsys.cli.console.rows import format_table
from buildsys.cli.engine_checks import named_engines
from buildsys.cli.session import BuildSession
from buildsys.cli.worker_pool import open_pool, run_job
from buildsys.errors import ManifestErrors, StageError, UsageError, with_hint
from buildsys.execution.freshness import FRESH
from buildsys.execution.key_parts import builder_versions
from buildsys.execution.local_runs import stage_job
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import change_model
from buildsys.project.plan import ProjectPlan
from buildsys.report.formatting import loss, metric, percent
from buildsys.report.result_files import PASSED
from buildsys.stages.table import EVALUATE, PREDICT, target_of
from buildsys.system.user_modules import split_reference
from buildsys.workers.pool import WorkerPool

SCHEMA = "buildsys/evaluate/1"
_COLUMNS = ("engine", "metric>", "loss (95 % interval)>", "allowed>", "verdict")
_FILES = {".npz": "npz", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_SAVED = "state.json"  # in a folder of Hugging Face's save_to_disk


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys evaluate``."""
    add_names(parser, "MODEL[:ENGINE] --data DATA")
    parser.epilog = (
        "DATA is a folder of images by class, or with labels in FOLDER.csv, an .npz, .parquet or "
        ".arrow file, a folder of save_to_disk, or FILE.py:FUNCTION. The rest of `evaluate` is as "
        "in the manifest. Only engines that are up to date are evaluated; the build stays."
    )
    parser.add_argument("--data", default="", help="labelled samples, in the project")
    parser.add_argument("--metric", default="", help="such as top1; default: the manifest's")
    add_json(parser)


def run(options: Namespace) -> int:
    """Print the accuracy of engines; return 1 unless all pass."""
    if len(options.names) != 1 or not options.data:
        hint = "write `buildsys evaluate MODEL --data FOLDER`"
        raise UsageError("evaluate takes one MODEL or MODEL:ENGINE, and --data", hint)
    session = BuildSession.read_only(options.root, options.names)
    project, engines = session.project, named_engines(session, options.names[0])
    model = engines[0].model
    states = session.explain([engine.target for engine in engines])
    ready = [
        engine.variant
        for engine in engines
        if engine.model == model
        and states[engine.target].state == FRESH
        and (project.build / engine.outputs["engine"].path).is_file()
    ]
    if not ready:
        hint = f"`buildsys build {options.names[0]}` builds them"
        raise UsageError(f"no engine of {options.names[0]} is built and up to date", hint)
    plan = _plan(session, model, _section(session, model, options.data, options.metric))
    with TemporaryDirectory(prefix="buildsys-evaluate-") as name, open_pool(project.state) as pool:
        folder = Path(name)
        predict = plan[target_of(PREDICT, model)]
        original = _run(pool, session, predict, folder)
        if original["status"] != PASSED:
            raise StageError(original["reason"], original["hint"])
        records = folder / predict.outputs["records"].path
        actions = [plan[target_of(EVALUATE, model, variant)] for variant in ready]
        results = [_run(pool, session, action, folder, original=records) for action in actions]
    document = {
        "schema": SCHEMA, "model": model, "data": options.data, "original": original,
        "engines": results,
    }  # fmt: skip
    print_answer(options, document, _lines(original, results))
    return int(any(result["status"] != PASSED for result in results))


def _section(session: BuildSession, model: str, data: str, metric: str) -> dict[str, Any]:
    """Make a section `evaluate` with other data. Raises: UsageError: data or metric is missing."""
    if not metric and not session.project.models[model].data["evaluate"]:
        raise UsageError(f"the manifest of {model} has no metric", "add --metric, such as top1")
    typed, function = split_reference(data)
    path, is_module = typed_path(typed), bool(function) and not typed.endswith(".py")
    if not (is_module or path.exists()):
        raise UsageError(f"there is no file {data}", "the path is relative to your folder")
    place = typed if is_module else project_name(session.project.root, typed)
    if function:
        source = {"python": f"{place}:{function}"}
    elif path.is_file():
        source = {_FILES.get(path.suffix.lower(), "npz"): place}
    elif (path / _SAVED).is_file():
        source = {"dataset": place}
    elif path.with_name(f"{path.name}.csv").is_file():
        source = {"images": place, "labels": f"{place}.csv"}
    else:
        source = {"folder": place}
    own = {"python": metric} if split_reference(metric)[1] else metric
    return {"data": source, **({"metric": own} if metric else {})}


def _plan(session: BuildSession, model: str, section: Mapping[str, Any]) -> Mapping[str, Action]:
    """Plan the model with another section. Raises: UsageError: it is not valid."""
    project = session.project
    try:
        changed = change_model(project, project.models[model], json.dumps({"evaluate": section}))
    except ManifestErrors as wrong:
        error = wrong.errors[0]
        raise UsageError(f"{model} cannot be evaluated so: {error.problem}", error.hint) from None
    return ProjectPlan({model: changed}, builder_versions(project.root)).of(model)


def _run(
    pool: WorkerPool, session: BuildSession, action: Action, folder: Path, **inputs: Path
) -> dict[str, Any]:
    """Run an action on files of the build and others; its outputs are in the folder."""
    project = session.project
    outputs = {role: folder / ref.path for role, ref in action.outputs.items()}
    outputs[RESULT].parent.mkdir(parents=True, exist_ok=True)
    job = stage_job(action, project.root, project.build, outputs, code=project.code)
    try:
        result = run_job(pool, replace(job, inputs={**job.inputs, **inputs}), must_pass=False)
    except StageError as error:  # the other engines are evaluated
        result = {"status": "failed", "reason": error.problem, "hint": error.hint}
    return {"engine": action.variant, **result}


def _lines(original: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the metric of the original model, a table of engines, and what is wrong."""
    is_share, samples = original["is_share"], original["samples"]
    value = metric(original["value"], is_share=is_share)
    yield f"{original['title']} of the original model: {value} of {samples:,} samples"
    rows = []
    for result in results:
        cells = "", "", ""
        if "loss" in result:
            value = metric(result["value"], is_share=is_share)
            cells = value, loss(result), percent(result["drop"])
        rows.append((result["engine"], *cells, result.get("verdict", result["status"])))
    yield from format_table(_COLUMNS, rows)
    for result in results:
        if result["status"] != PASSED:
            yield f"{result['engine']}: {with_hint(result['reason'], result['hint'])}"
