"""One trial of `buildsys reduce`: build and run a part of an engine's graph.

``nodes`` of the options number nodes of the graph, None are all: then the golden outputs are
expected. Those of a part are computed by ONNX Runtime without optimizations, with which
conversions to a low precision have been checked. The part is written next to the result.
"""

import json
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, GraphRefusedError, load_backend
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensors import Case, load_case, save_tensors
from buildsys.reduce.parts import (
    Tensors,
    borders,
    draw_weights,
    drawn_inputs,
    own_weights,
    part_of,
    values_of,
)
from buildsys.reduce.search import FACTS, WRONG
from buildsys.stages.common.golden_check import (
    OutputRules,
    compare_case,
    golden_limits,
    output_rules,
    wrong_outputs,
)
from buildsys.stages.common.node_patterns import load_named_model
from buildsys.stages.common.remedies import explain_refusal
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job, StageResult

RAISED = "error"  # while building or running


def run(job: Job) -> StageResult:
    """Try a part. Raises: StageError: it cannot be made. Unavailable: the backend is missing."""
    folder, golden = job.outputs["result"].parent, load_case(job.inputs["case"])
    model, numbers = load_named_model(job.inputs["model"]), job.options["nodes"]
    inputs, expected, rules = golden.inputs, golden.outputs, output_rules(job)
    if numbers is not None:
        read, computed = borders(model, numbers)
        values, rules = values_of(job, model, {*read, *computed}, golden.inputs), OutputRules()
        inputs, expected = ({n: values[n] for n in names} for names in (read, computed))
    part, inputs = part_of(
        model, range(len(model.graph.node)) if numbers is None else numbers, inputs, expected
    )
    if "weights" in job.options["random"]:
        draw_weights(part)
    if "inputs" in job.options["random"]:
        inputs = drawn_inputs(inputs)
    if job.options["random"]:
        expected = values_of(job, part, list(expected), inputs)
    limits = golden_limits(job, {"": golden}, job.options["engine"]["precision"])
    facts: dict[str, Any] = {
        "nodes": [[node.name, node.op_type] for node in part.graph.node],
        "weights": [tensor.name for tensor in own_weights(part)],
        "limits": limits,
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    save_tensors(folder / "inputs.npz", inputs)
    save_tensors(folder / "expected.npz", expected)
    save_model(part, folder / "model.onnx")
    try:
        actual = _engine_outputs(job, folder, inputs)
    except Unavailable:
        raise
    except StageError as error:
        nodes = error.nodes if isinstance(error, GraphRefusedError) else ()
        failure = {"kind": RAISED, "text": error.problem, "hint": error.hint}
        operators = sorted({node.operator for node in nodes} - {""})
        return StageResult(figures={**facts, "failure": {**failure, "operators": operators}})
    compared = compare_case(Case(inputs, expected), actual, limits, rules)
    texts = [
        f"{name}: {comparison.sentence('the engine', 'the reference')}"
        for name, comparison in wrong_outputs(compared).items()
    ]
    wrong = {"kind": WRONG, "text": texts[0], "hint": ""} if texts else None
    return StageResult(figures={**facts, "failure": wrong})


def _engine_outputs(job: Job, folder: Path, inputs: Tensors) -> Tensors:
    """Build and run an engine of the part. Raises: StageError."""
    options = job.options["engine"]
    backend = load_backend(options["backend"], job.toolchain, options.get("unusable", ""))
    backend.prepare(options)
    implementation = implementation_of(job, options["backend"])
    request = BuildRequest(
        model=job.model,
        onnx=implementation.graph(folder / "model.onnx", folder / "operators"),
        engine=folder / "engine" / job.options["file"],
        options=options,
        inputs={n: {"shape": [*t.shape], "dtype": t.dtype} for n, t in inputs.items()},
        dims={},
        operators=implementation.uses,
        project=job.project,
    )
    request.engine.parent.mkdir(exist_ok=True)
    try:
        backend.build(request)
    except GraphRefusedError as refusal:
        refusal.hint = explain_refusal(refusal, request, job).hint
        raise
    session = backend.load(request.engine, options, implementation.uses)
    try:
        return session.run(inputs)
    finally:
        session.close()
