"""Conversion of a graph to fp16 or bf16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import load_model, opsets
from buildsys.onnx_graphs.tensor_types import DTYPES, element_types
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.calibrate.ranges import IntermediateTensors
from buildsys.stages.common.golden_check import OutputCheck
from buildsys.stages.common.kept_nodes import REASON
from buildsys.stages.common.node_patterns import TensorOrigin, named_nodes, tensor_origin
from buildsys.stages.convert.cast_graph import (
    BF16_IR_VERSION,
    BF16_OPSET,
    HEAVY,
    convert_precision,
    raise_opset,
)
from buildsys.workers.job import Job

Figures = dict[str, Any]
Golden = Mapping[str, Case]


def convert(job: Job, kept: Sequence[str], golden: Golden) -> tuple[ModelProto, Figures]:  # noqa: ARG001
    """Convert the graph, except for the nodes ``kept`` by a search.

    Raises: StageError: no expensive operator can be converted.
    """
    if job.options.get("tool") == "autocast":
        return _by_autocast(job)
    return _by_schemas(job, kept)


def explain(
    job: Job, failed: Sequence[OutputCheck], golden: Golden, figures: Figures
) -> tuple[str, list[str]]:
    """Find the cause of a failure, if it is an overflow, and remedies."""
    precision, remedies = job.options["precision"], []
    if job.options.get("tool") != "autocast":
        command = f"`buildsys debug --fp32-nodes {job.model}:ENGINE`"
        text = f"{command} finds the nodes that must stay in fp32"
        remedies.append(f"{text}, and precision: auto-{precision} keeps them there")
    origin = _overflow_origin(job, golden[failed[0].case])
    figures["overflow"] = origin and {"node": origin.node, "tensor": origin.tensor}
    if origin is None:
        return "", remedies
    if precision == "fp16":
        remedies.append("bf16 has the range of float32")
    cause = f"the {precision} graph overflows: {origin} is not finite in {precision}, and "
    return cause, remedies


def _by_schemas(job: Job, searched: Sequence[str]) -> tuple[ModelProto, Figures]:
    precision = job.options["precision"]
    model = load_model(job.inputs["model"])
    warnings: list[str] = []
    if precision == "bf16":
        version, original = opsets(model).get("ai.onnx", 1), model
        model, problem = raise_opset(model, BF16_OPSET, BF16_IR_VERSION)
        if problem:
            text = f"opset {version} is kept, without bfloat16 for some operators"
            warnings.append(f"{text}: {problem}")
        elif model is not original:
            raised = f"opset {version} was raised to {BF16_OPSET}"
            warnings.append(f"{raised}, the first with bfloat16 convolutions")
    job.progress(f"converting {len(model.graph.node)} nodes to {DTYPES[precision]}")
    exclude = [*job.options.get("exclude", ()), *searched]
    if exclude:
        named_nodes(model)  # for patterns of nodes without a unique name
    conversion = convert_precision(model, precision, exclude)
    warnings += [f"{problem}; its nodes stay in float32" for problem in conversion.problems]
    if clamped := conversion.clamped:
        more = f" and {len(clamped) - 1} more" if len(clamped) > 1 else ""
        limited = f"constants of masks are limited to the range of {DTYPES[precision]}"
        warnings.append(f"{limited}: {clamped[0]}{more}")
    return model, {
        "method": "by the ONNX schemas of the opset, node by node; inputs and outputs keep their"
        " types",
        "casts": conversion.casts,
        "kept_fp32": list(conversion.kept),
        "kept_reasons": {**conversion.kept, **dict.fromkeys(searched, REASON)},
        "warnings": warnings,
    }


def _by_autocast(job: Job) -> tuple[ModelProto, Figures]:
    modelopt = import_module("buildsys.stages.convert.modelopt")  # only in keys of its targets
    precision = job.options["precision"]
    job.progress(f"converting to {DTYPES[precision]} with ModelOpt AutoCast")
    model: ModelProto = modelopt.autocast(job.inputs["model"], precision)
    types = element_types(model)
    heavy = [node for node in model.graph.node if node.op_type in HEAVY]
    full = [node for node in heavy if types.get(node.output[0]) == TensorProto.FLOAT]
    casts = sum(node.op_type == "Cast" for node in model.graph.node)
    if not casts:
        raise StageError("ModelOpt AutoCast kept all nodes in float32", "use tool: builtin")
    return model, {
        "method": "by NVIDIA ModelOpt AutoCast; inputs and outputs keep their types",
        "casts": casts,
        "kept_fp32": [node.name or node.output[0] for node in full],
        "warnings": [],
    }


def _overflow_origin(job: Job, golden: Case) -> TensorOrigin | None:
    """Run one case again to find the origin of an overflow."""
    typed = load_model(job.outputs["model"])
    nodes = list(typed.graph.node)
    emulated = emulate(typed, job.options["precision"])
    is_finite = {
        tensor.name: bool(np.isfinite(numpy_helper.to_array(tensor)).all())
        for tensor in emulated.graph.initializer
        if tensor.data_type == TensorProto.FLOAT
    }
    inputs = dict(golden.inputs)
    for group in IntermediateTensors.of_job(job, emulated).groups(inputs):
        for name, array in group(inputs).items():
            is_finite[name] = bool(np.isfinite(array).all())
    return find_origin(nodes, is_finite)


def find_origin(nodes: Sequence[NodeProto], is_finite: Mapping[str, bool]) -> TensorOrigin | None:
    """Find the first tensor that is infinite although its node's inputs are not.

    A node without numeric inputs, such as a mask constant, is no origin. If a cast overflows, the
    origin is its input.
    """
    for node in nodes:
        inputs = [is_finite[name] for name in node.input if name in is_finite]
        result = next((name for name in node.output if not is_finite.get(name, True)), None)
        if result is not None and inputs and all(inputs):
            return tensor_origin(node.input[0] if node.op_type == "Cast" else result, nodes)
    return None
