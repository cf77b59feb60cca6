"""buildsys check: more comparisons with the original model, or two builds byte by byte."""

from __future__ import annotations

import random
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from buildsys.cli.command import add_json, add_names, natural_number, positive_integer, print_answer
from buildsys.cli.console.rows import format_table
from buildsys.cli.graph_files import require_graph
from buildsys.cli.reproducibility import compare_two_builds
from buildsys.cli.session import BuildSession
from buildsys.cli.worker_pool import run_stage
from buildsys.errors import UsageError
from buildsys.execution.freshness import FRESH
from buildsys.manifest.shape_cases import format_dims
from buildsys.plan.graph_points import changes_golden, graph_points, size_ranges
from buildsys.stages.table import REFERENCE, VALIDATE, target_of

SCHEMA = "buildsys/stress/1"
_STAGE = "buildsys.stages.validate.stress"
_COLUMNS = ("run>", "sizes", "seed>", "values", "graph", "output", "difference")
_VALUES = {0: "as data", 1: "extreme", -1: "extreme, mirrored"}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys check``."""
    add_names(parser, "MODEL | --reproducible MODEL [STAGE ...]")
    parser.add_argument(
        "-n", "--count", type=positive_integer, default=50, help="number of sizes and inputs"
    )
    parser.add_argument(
        "--seed", type=natural_number, help="first seed; default: a new one in each run"
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="build the model twice in clean folders and compare the artifacts byte by byte",
    )
    parser.add_argument(
        "--keep", action="store_true", help="--reproducible: keep both folders, print their paths"
    )
    add_json(parser)


def run(options: Namespace) -> int:
    """Return 1 for a difference, or if nothing was compared."""
    if options.reproducible:
        return compare_two_builds(options)
    if options.keep:
        raise UsageError("--keep keeps the folders of two builds", "add --reproducible")
    session = BuildSession.read_only(options.root)
    model = session.one_model("check", options.names)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    comparison = compare_more_inputs(session, model, options.count, seed)
    document = {"schema": SCHEMA, "model": model, "seed": seed, **comparison}
    print_answer(options, document, _lines(model, document))
    return 1 if comparison["failures"] or not comparison["compared"] else 0


def compare_more_inputs(session: BuildSession, model: str, count: int, seed: int) -> dict[str, Any]:
    """Compare a model's graphs with the original in a worker, outside the build folder.

    Raises: UsageError: its graphs are not up to date, or not comparable.
    """
    project, spec = session.project, session.project.models[model].data
    require_graph(project, model)
    actions = session.actions.of(model)
    validate, reference = (actions[target_of(stage, model)] for stage in (VALIDATE, REFERENCE))
    states = session.explain(validate.after)
    if stale := [target for target in validate.after if states[target].state != FRESH]:
        hint = f"run `buildsys build {validate.target}` first"
        raise UsageError(f"{stale[0]} is not up to date", hint)
    points = graph_points(spec)
    if changes_golden((*points.unsimplified.steps, *points.final.steps)):
        problem = f"surgery changes the inputs or outputs of {model}, so its graphs cannot be"
        hint = "run it for a model without such steps"
        raise UsageError(f"{problem} compared with the original model", hint)
    files = {**reference.inputs, **validate.inputs}
    inputs = {role: project.build / ref.path for role, ref in files.items()}
    drawn = {"count": count, "seed": seed, "spans": size_ranges(spec, points.exported)}
    options = {**validate.options, **reference.options, **drawn}
    target = f"stress:{model}"
    result = run_stage(project, _STAGE, target, options, inputs, server=reference.server)
    return {name: result[name] for name in ("count", "compared", "skipped", "failures")}


def _lines(model: str, comparison: Mapping[str, Any]) -> list[str]:
    failures, skipped = comparison["failures"], comparison["skipped"]
    wrong = len({entry["run"] for entry in failures})
    rows = [
        (
            str(entry["run"]), format_dims(entry["dims"]), str(entry["seed"]),
            _VALUES[entry["extreme"]], entry["graph"], entry["output"], entry["problem"],
        )
        for entry in failures
    ]  # fmt: skip
    lines = format_table(_COLUMNS, rows) if rows else []
    if skipped:
        lines.append(f"{len(skipped)} not compared, the first: {skipped[0]['problem']}")
    again = f"repeat with --seed {comparison['seed']}"
    state = f"{wrong} of {comparison['compared']} runs differ" if wrong else "no run differs"
    return [*lines, f"{model}: {comparison['compared']} runs compared, {state} ({again})"]
