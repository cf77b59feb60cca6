"""The nodes that must stay in fp32 for an fp16 or int8 engine to be within its limits."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.cli.command import print_answer
from buildsys.cli.console.rows import format_table
from buildsys.cli.engine_checks import one_engine
from buildsys.cli.graph_files import require_graph
from buildsys.cli.session import Session
from buildsys.cli.worker_pool import open_pool, run_job
from buildsys.errors import UsageError
from buildsys.execution.freshness import FRESH
from buildsys.manifest.backend_choices import base_precision, is_auto
from buildsys.plan.action import Action
from buildsys.plan.model_plan import FULL_PRECISION, QUANTIZED
from buildsys.report.formatting import error, plural
from buildsys.stages.table import CONVERT, ENGINE, VERIFY, target_of
from buildsys.workers.job import Job

SCHEMA = "buildsys/localize/1"
_STAGE = "buildsys.stages.search.stage"


def find_fp32_nodes(options: Namespace) -> int:
    """Print a list of nodes for the manifest; return 1 if none was found.

    ``options`` has ``names`` (one MODEL:ENGINE), ``limit`` (seconds) and ``json``.
    """
    if len(options.names) != 1:
        problem = "debug --fp32-nodes takes one MODEL:ENGINE"
        raise UsageError(problem, "`buildsys list engine` lists all")
    session = Session.read_only(options.root)
    named = one_engine(session, options.names[0])
    model, engine = named.model, named.variant
    convert = _conversion(session, model, engine)
    verify = session.actions[target_of(VERIFY, model, engine)]
    answer = _search(session, convert, verify, options.limit)
    document = {
        "schema": SCHEMA,
        "model": model,
        "engine": engine,
        "precision": convert.variant,
        **answer,
        "yaml": None if not answer["nodes"] else "\n".join(_yaml(convert, answer)),
    }
    print_answer(options, document, _lines(convert, document))
    return 1 if answer["nodes"] is None else 0


def _conversion(session: Session, model: str, engine: str) -> Action:
    """Return the conversion whose graph the engine is built from.

    Raises: UsageError: it has none, or its inputs are not up to date.
    """
    spec = next(
        name for name in session.project.models[model].data["engines"] if name["name"] == engine
    )
    precision = base_precision(spec)
    if is_auto(spec):
        problem = f"the build of {model}:{engine} finds its nodes itself"
        raise UsageError(problem, f"`buildsys explain {ENGINE}:{model}:{engine}` names them")
    if precision == FULL_PRECISION:
        problem = f"{model}:{engine} is an fp32 engine, so no node is rounded"
        raise UsageError(problem, f"`buildsys debug {VERIFY}:{model}:{engine}` repeats its check")
    require_graph(session.project, model)
    if spec.get("optimized") or spec.get("quantization") == "dynamic" or precision == "int4":
        problem = f"{model}:{engine} is fused or has quantized weights, which cannot be bisected"
        raise UsageError(problem, "compare engines with other quantize_weights.exclude")
    actions, target = session.actions.of(model), target_of(CONVERT, model, precision)
    if target not in actions[target_of(ENGINE, model, engine)].after:
        kind = "quantization: explicit" if precision in QUANTIZED else "typing: strong"
        problem = f"the builder of {model}:{engine} chooses the precision of each layer itself"
        raise UsageError(problem, f"set precision: auto-{precision}, {kind}, or layer_precisions")
    convert = actions[target]
    if convert.options.get("tool") == "autocast" or (
        convert.options.get("quantize", {}).get("tool") == "modelopt"
    ):
        section = "quantize" if precision in QUANTIZED else "convert"
        raise UsageError("ModelOpt chooses the nodes itself", f"set {section}: {{tool: builtin}}")
    states = session.explain(convert.after)
    stale = [name for name in convert.after if states[name].state != FRESH]
    if stale:
        raise UsageError(f"{stale[0]} is not up to date", f"run `buildsys build {target}` first")
    return convert


def _search(session: Session, convert: Action, verify: Action, limit: int) -> dict[str, Any]:
    """Search in a worker, outside the build folder."""
    project = session.project
    inputs = {role: project.build / ref.path for role, ref in convert.inputs.items()}
    with TemporaryDirectory(prefix="buildsys-localize-") as folder:
        job = Job(
            target=f"localize:{verify.model}:{verify.variant}",
            stage=_STAGE,
            model=convert.model,
            variant=convert.variant,
            options={
                **convert.options,
                "tolerance": verify.options["tolerance"],
                "limit_s": limit,
            },
            inputs={role: path for role, path in inputs.items() if path.exists()},
            outputs={"result": Path(folder) / "localize.json"},
            project=project.root,
        )
        with open_pool(project.state) as pool:
            result = run_job(pool, job)
    fields = ("without", "with", "nodes", "is_smallest", "trials", "exclude", "seconds")
    return {name: result[name] for name in fields}


def _lines(convert: Action, answer: Mapping[str, Any]) -> Iterator[str]:
    name, precision = f"{answer['model']}:{answer['engine']}", answer["precision"]
    without, nodes = answer["without"], answer["nodes"]
    if without["passed"]:
        yield (
            f"{name}: the {precision} graph is within the limits (relative error"
            f" {error(without['relative'])}), so no node has to stay in fp32"
        )
        yield "if verify fails, the error arises in the engine: its kernels or fusions"
        return
    yield f"{name}: {without['reason']}"
    effort = f"{plural(answer['trials'], 'trial')} in {answer['seconds']:.0f} s"
    if nodes is None:
        yield f"no list of nodes was found within the limits ({effort})"
        yield "raise --limit, choose another precision, or raise the limits of verify"
        return
    smallest = (
        "none of which can be left out" if answer["is_smallest"] else "perhaps not the fewest"
    )
    yield ""
    yield (
        f"with {plural(len(nodes), 'node')} in fp32, {smallest}, the relative error is"
        f" {error(answer['with']['relative'])} ({effort}):"
    )
    yield from format_table(("node", "operator"), nodes)
    yield ""
    yield "for the manifest:"
    yield ""
    yield from _yaml(convert, answer)


def _yaml(convert: Action, answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section with the present patterns and the new nodes."""
    yield "quantize:" if "quantize" in convert.options else "convert:"
    yield "  exclude:"
    for pattern in (*answer["exclude"], *(name for name, _ in answer["nodes"])):
        yield f"    - {json.dumps(pattern, ensure_ascii=False)}"  # JSON strings are YAML
