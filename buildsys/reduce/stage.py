"""One trial of `buildsys reduce`: build and run a part of an engine's graph.

``nodes`` of the options number nodes of the graph, None are all: then the golden outputs are
expected. The expected values of a part are computed by ONNX Runtime without optimizations, from
the graph in full precision where it has the tensor. The part is written next to the result.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx import ModelProto

from buildsys.backends.interface import BuildRequest, GraphRefusedError, load_backend
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensors import Case, Tensor, load_case, save_tensors, tensor_of
from buildsys.reduce.parts import (
    Part,
    borders,
    computed_names,
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
    model = load_named_model(job.inputs["model"])
    part, rules = _make_part(job, model, golden)
    save_tensors(folder / "inputs.npz", part.inputs)
    save_tensors(folder / "expected.npz", part.expected)
    save_model(part.model, folder / "model.onnx")
    limits = golden_limits(job, {"": golden}, job.options["engine"]["precision"])
    facts: dict[str, Any] = {
        "nodes": [[node.name, node.op_type] for node in part.model.graph.node],
        "weights": [tensor.name for tensor in own_weights(part.model)],
        "limits": limits,
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    try:
        actual = _engine_outputs(job, folder, part)
    except Unavailable:
        raise
    except GraphRefusedError as error:
        operators = sorted({node.operator for node in error.nodes} - {""})
        refused = {"text": error.problem, "hint": error.hint, "operators": operators}
        return StageResult(figures={**facts, "failure": {"kind": RAISED, **refused}})
    except StageError as error:
        failure = {"kind": RAISED, "text": error.problem, "hint": error.hint}
        return StageResult(figures={**facts, "failure": failure})
    compared = compare_case(Case(part.inputs, part.expected), actual, limits, rules)
    texts = [
        f"{name}: {comparison.sentence('the engine', 'the reference')}"
        for name, comparison in wrong_outputs(compared).items()
    ]
    wrong = {"kind": WRONG, "text": texts[0], "hint": ""} if texts else None
    return StageResult(figures={**facts, "failure": wrong})


def _make_part(job: Job, model: ModelProto, golden: Case) -> tuple[Part, OutputRules]:
    numbers, random = job.options["nodes"], job.options["random"]
    if numbers is None:
        everything = range(len(model.graph.node))
        return part_of(model, everything, golden.inputs, golden.outputs), output_rules(job)
    exact = load_named_model(job.inputs["exact"]) if "exact" in job.inputs else None
    inputs, outputs = borders(model, numbers)
    names = {*inputs, *outputs}
    values = values_of(job, model, names, golden.inputs)
    if exact is not None:
        common = names & computed_names(exact)
        for name, tensor in values_of(job, exact, common, golden.inputs).items():
            values[name] = tensor_of(tensor.typed(), values[name].dtype)
    given = {name: values[name] for name in inputs}
    part = part_of(model, numbers, given, {name: values[name] for name in outputs})
    if "weights" in random:
        draw_weights(part.model)
    if "inputs" in random:
        part = part._replace(inputs=drawn_inputs(part.inputs))
    if random:
        part = part._replace(expected=values_of(job, part.model, outputs, part.inputs))
    return part, OutputRules()


def _engine_outputs(job: Job, folder: Path, part: Part) -> Mapping[str, Tensor]:
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
        inputs={n: {"shape": [*t.shape], "dtype": t.dtype} for n, t in part.inputs.items()},
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
        return session.run(part.inputs)
    finally:
        session.close()
