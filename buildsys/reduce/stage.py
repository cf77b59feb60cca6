"""The second half of a trial of `buildsys reduce`: the engine of a part, in its interpreter."""

import json
from collections.abc import Mapping
from pathlib import Path

from buildsys.backends.interface import BuildRequest, GraphRefusedError, load_backend
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.tensors import Case, Tensor, load_tensors
from buildsys.reduce.search import FACTS, WRONG
from buildsys.stages.common.difference_hints import wide_integer_hint
from buildsys.stages.common.golden_check import (
    OutputRules,
    compare_case,
    output_rules,
    wrong_outputs,
)
from buildsys.stages.common.remedies import explain_refusal
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job, StageResult

RAISED = "error"  # while building or running


def run(job: Job) -> StageResult:
    """Build and run the part that was cut. Raises: Unavailable: the backend is missing."""
    folder, is_whole = job.outputs["result"].parent, job.options["nodes"] is None
    facts = json.loads((folder / FACTS).read_bytes())
    inputs, expected = (load_tensors(folder / f"{name}.npz") for name in ("inputs", "expected"))
    try:
        actual = _engine_outputs(job, folder, inputs)
    except Unavailable:
        raise
    except StageError as error:
        nodes = error.nodes if isinstance(error, GraphRefusedError) else ()
        failure = {"kind": RAISED, "text": error.problem, "hint": error.hint}
        operators = sorted({node.operator for node in nodes} - {""})
        return StageResult(figures={**facts, "failure": {**failure, "operators": operators}})
    rules = output_rules(job) if is_whole else OutputRules()
    compared = compare_case(Case(inputs, expected), actual, facts["limits"], rules)
    failures = [
        {
            "kind": WRONG,
            "text": f"{name}: {comparison.sentence('the engine', 'the reference')}",
            "hint": wide_integer_hint(job.options["engine"]["backend"], [comparison]),
        }
        for name, comparison in wrong_outputs(compared).items()
    ]
    return StageResult(figures={**facts, "failure": failures[0] if failures else None})


def _engine_outputs(job: Job, folder: Path, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
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
