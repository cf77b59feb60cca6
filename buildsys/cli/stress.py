"""A model's graphs against the original, at more sizes and inputs."""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import print_answer
from buildsys.cli.console.rows import format_table
from buildsys.cli.graph_files import require_graph
from buildsys.cli.session import Session
from buildsys.cli.worker_pool import open_pool, run_job
from buildsys.errors import UsageError
from buildsys.execution.freshness import FRESH
from buildsys.manifest.shape_cases import format_dims
from buildsys.plan.action import Action
from buildsys.plan.graph_points import changes_golden, graph_points, size_ranges
from buildsys.stages.table import REFERENCE, VALIDATE, target_of
from buildsys.workers.job import Job

SCHEMA = "buildsys/stress/1"
_STAGE = "buildsys.stages.validate.stress"
_COLUMNS = ("run>", "sizes", "seed>", "values", "graph", "output", "difference")
_VALUES = {0: "as data", 1: "extreme", -1: "extreme, mirrored"}


def compare_more_inputs(options: Namespace) -> int:
    """Compare a model's graphs with the original; return 1 if any output differs.

    ``options`` has ``names``, ``count``, ``seed`` and ``json``. Without any comparison the result
    is 1 as well.
    """
    session = Session.read_only(options.root)
    model = session.one_model("check", options.names)
    require_graph(session.project, model)
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    actions = session.actions.of(model)
    validate, reference = (actions[target_of(s, model)] for s in (VALIDATE, REFERENCE))
    states = session.explain(validate.after)
    stale = [target for target in validate.after if states[target].state != FRESH]
    if stale:
        raise UsageError(
            f"{stale[0]} is not up to date", f"run `buildsys build {validate.target}` first"
        )
    spec = session.project.models[model].data
    exported = graph_points(spec).exported
    comparison = _run_stage(session, validate, reference, {
        "count": options.count, "seed": seed, "spans": size_ranges(spec, exported),
    })  # fmt: skip
    document = {"schema": SCHEMA, "model": model, "seed": seed, **comparison}
    print_answer(options, document, _lines(model, document))
    return 1 if comparison["failures"] or not comparison["compared"] else 0


def _run_stage(
    session: Session, validate: Action, reference: Action, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the comparison in a worker, outside the build folder."""
    points = graph_points(session.project.models[validate.model].data)
    if changes_golden((*points.unsimplified.steps, *points.final.steps)):
        raise UsageError(
            f"surgery changes the inputs or outputs of {validate.model}, so its graphs cannot be"
            " compared with the original model",
            "run it for a model without such steps",
        )
    project = session.project
    files = {**reference.inputs, **validate.inputs}
    inputs = {role: project.build / ref.path for role, ref in files.items()}
    with TemporaryDirectory(prefix="buildsys-stress-") as folder:
        job = Job(
            target=f"stress:{validate.model}",
            stage=_STAGE,
            model=validate.model,
            variant="",
            options={**validate.options, **reference.options, **more},
            inputs={role: path for role, path in inputs.items() if path.exists()},
            outputs={"result": Path(folder) / "stress.json"},
            project=project.root,
            server=reference.server,
        )
        with open_pool(project.state) as pool:
            result = run_job(pool, job)
    return {name: result[name] for name in ("count", "compared", "skipped", "failures")}


def _lines(model: str, comparison: Mapping[str, Any]) -> list[str]:
    failures, skipped = comparison["failures"], comparison["skipped"]
    wrong = len({entry["run"] for entry in failures})
    lines = []
    if failures:
        rows = [
            (
                str(entry["run"]),
                format_dims(entry["dims"]),
                str(entry["seed"]),
                _VALUES[entry["extreme"]],
                entry["graph"],
                entry["output"],
                entry["problem"],
            )
            for entry in failures
        ]
        lines += format_table(_COLUMNS, rows)
    if skipped:
        lines.append(f"{len(skipped)} not compared, the first: {skipped[0]['problem']}")
    again = f"repeat with --seed {comparison['seed']}"
    state = f"{wrong} of {comparison['compared']} runs differ" if wrong else "no run differs"
    return [*lines, f"{model}: {comparison['compared']} runs compared, {state} ({again})"]
