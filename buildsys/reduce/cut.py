"""The first half of a trial of `buildsys reduce`: a part of an engine's graph, with its tensors.

``nodes`` of the options number nodes of the graph, None are all: then the golden outputs are
expected. Those of a part are computed by ONNX Runtime without optimizations, with which
conversions to a low precision have been checked. All files are written next to the result.
"""

import json

from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensors import load_case, save_tensors
from buildsys.reduce.parts import (
    borders,
    draw_weights,
    drawn_inputs,
    own_weights,
    part_of,
    values_of,
)
from buildsys.reduce.search import FACTS
from buildsys.stages.common.golden_check import golden_limits
from buildsys.stages.common.node_patterns import load_named_model
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write a part. Raises: StageError: it cannot be made."""
    folder, golden = job.outputs["result"].parent, load_case(job.inputs["case"])
    model, numbers = load_named_model(job.inputs["model"]), job.options["nodes"]
    inputs, expected = golden.inputs, golden.outputs
    if numbers is not None:
        read, computed = borders(model, numbers)
        values = values_of(job, model, {*read, *computed}, golden.inputs)
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
    facts = {
        "nodes": [[node.name, node.op_type] for node in part.graph.node],
        "weights": [tensor.name for tensor in own_weights(part)],
        "limits": golden_limits(job, {"": golden}, job.options["engine"]["precision"]),
    }
    (folder / FACTS).write_text(json.dumps(facts), encoding="utf-8")
    save_tensors(folder / "inputs.npz", inputs)
    save_tensors(folder / "expected.npz", expected)
    save_model(part, folder / "model.onnx")
    return StageResult()
