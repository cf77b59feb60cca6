"""Conversion of a graph to fp16 or bf16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from onnx import ModelProto, TensorProto

from buildsys.errors import StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import load_model, opsets
from buildsys.onnx_graphs.tensor_types import DTYPES, ELEM_TYPES, element_types
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.golden_check import OutputCheck
from buildsys.stages.common.kept_nodes import REASON
from buildsys.stages.common.node_patterns import named_nodes
from buildsys.stages.convert.cast_graph import (
    BF16_IR_VERSION,
    BF16_OPSET,
    HEAVY,
    convert_precision,
    raise_opset,
)
from buildsys.stages.convert.overflow import OverflowOrigin, add_probes, find_origin
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job

Figures = dict[str, Any]
Golden = Mapping[str, Case]
_FLUSHED_WARNING = 0.01  # share of all weights


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
        text = f"`doit localize {job.model}:ENGINE` finds the nodes that must stay in fp32"
        remedies.append(f"{text}, and precision: auto-{precision} keeps them there")
    figures["overflow"] = None
    origin = _overflow_origin(job, golden[failed[0].case])
    if origin is None:
        return "", remedies
    figures["overflow"] = {"node": origin.node, "tensor": origin.tensor}
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
        if model is not original:
            raised = f"opset {version} was raised to {BF16_OPSET}"
            warnings.append(f"{raised}, the first with bfloat16 convolutions")
        elif problem:
            text = f"opset {version} is kept, without bfloat16 for some operators"
            warnings.append(f"{text}: {problem}")
    job.progress(f"converting {len(model.graph.node)} nodes to {DTYPES[precision]}")
    exclude = [*job.options.get("exclude", ()), *searched]
    if exclude:
        named_nodes(model)  # for patterns of nodes without a unique name
    conversion = convert_precision(model, precision, exclude)
    problems, clamped = conversion.problems.values(), conversion.clamped
    warnings += [f"{problem}; its nodes stay in float32" for problem in problems]
    if clamped:
        more = f" and {len(clamped) - 1} more" if len(clamped) > 1 else ""
        limited = f"constants of masks are limited to the range of {DTYPES[precision]}"
        warnings.append(f"{limited}: {clamped[0]}{more}")
    if conversion.flushed > _FLUSHED_WARNING * conversion.values:
        warnings.append(f"{conversion.flushed} of {conversion.values} non-zero weights became zero")
    return model, {
        "method": "by the ONNX schemas of the opset, node by node; inputs and outputs keep their"
        " types",
        "converted": conversion.converted,
        "casts": conversion.casts,
        "kept_fp32": list(conversion.kept),
        "kept_reasons": {**conversion.kept, **dict.fromkeys(searched, REASON)},
        "flushed_to_zero": {"values": conversion.flushed, "of": conversion.values},
        "warnings": warnings,
    }


def _by_autocast(job: Job) -> tuple[ModelProto, Figures]:
    modelopt = import_module("buildsys.stages.quantize.modelopt")  # only in keys of its targets
    precision = job.options["precision"]
    dtype = DTYPES[precision]
    job.progress(f"converting to {dtype} with ModelOpt AutoCast")
    model: ModelProto = modelopt.autocast(job.inputs["model"], precision)
    nodes, types = list(model.graph.node), element_types(model)
    casts = [node for node in nodes if node.op_type == "Cast"]
    low = [
        node
        for node in nodes
        if node.op_type != "Cast"
        and any(types.get(name) == ELEM_TYPES[dtype] for name in node.output)
    ]
    if not low:
        raise StageError("ModelOpt AutoCast kept all nodes in float32", "use tool: builtin")
    full = [
        node
        for node in nodes
        if node.op_type in HEAVY and types.get(node.output[0]) == TensorProto.FLOAT
    ]
    return model, {
        "method": "by NVIDIA ModelOpt AutoCast; inputs and outputs keep their types",
        "converted": len(low),
        "casts": len(casts),
        "kept_fp32": [node.name or node.output[0] for node in full],
        "warnings": [],
    }


def _overflow_origin(job: Job, golden: Case) -> OverflowOrigin | None:
    """Run one case again to find the origin of an overflow."""
    typed = load_model(job.outputs["model"])
    nodes = list(typed.graph.node)
    emulated = emulate(typed, job.options["precision"])
    probes = add_probes(emulated)
    values = open_graph(job, emulated).run(golden.inputs)
    finite = {tensor for probe, tensor in probes.items() if values[probe].array == 0}
    return find_origin(nodes, finite, set(probes.values()) - finite)
