"""The convert stage: the simplified graph in the precision of an engine.

The result is typed ONNX for strongly typed builders. It runs here on the CPU with the rounding and
range of the precision, so a wrong conversion or an overflow is found without a GPU, and no engine
is built from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    dtype_name,
    file_bytes,
    load_model,
    opsets,
    save_model,
)
from buildsys.onnx_graphs.tensor_types import DTYPES, ELEM_TYPES, element_types
from buildsys.onnx_graphs.tensors import Case, load_case
from buildsys.stages.common.golden_check import (
    and_more,
    check_outputs,
    summarize_checks,
)
from buildsys.stages.common.kept_nodes import REASON, kept_nodes
from buildsys.stages.common.node_patterns import named_nodes
from buildsys.stages.convert.cast_graph import (
    BF16_IR_VERSION,
    BF16_OPSET,
    HEAVY,
    convert_precision,
    raise_opset,
)
from buildsys.stages.convert.overflow import OverflowOrigin, add_probes, find_origin
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job, StageResult

# Imported by name, so their code is only in the keys of targets that use them.
_CONVERTERS = {
    "quantize": "buildsys.stages.quantize.convert",
    "autocast": "buildsys.stages.quantize.modelopt",
    "weights": "buildsys.stages.quantize.weights",
}
_FLUSHED_WARNING = 0.01  # share of all weights


def run(job: Job) -> StageResult:
    """Write the graph in ``precision``; inputs and outputs keep their types.

    Every case runs with the rounding of the precision. A failure states output, case, index, both
    values and, after an overflow, the node. The tensors of each failed case are saved as
    ``failed/PRECISION-CASE.npz`` (keys ``in.``, ``expected.``, ``actual.``) next to the result.

    Raises: StageError: no expensive operator can be converted. CheckFailed: the result is invalid.
    """
    kept = kept_nodes(job)
    if kept.all:
        return _in_fp32(job)
    if "quantize" in job.options:
        result: StageResult = import_module(_CONVERTERS["quantize"]).run(job)
        return result
    if job.options.keys() & {"optimize", "quantize_weights"}:
        found: StageResult = import_module(_CONVERTERS["weights"]).run(job)
        return found
    figures = _convert(job, kept.names)
    if missing := implementation_of(job).missing_operators(job.outputs["model"]):
        warning = f"nothing implements {' and '.join(missing)} for ONNX Runtime"
        figures["warnings"].append(f"{warning}: the numbers of the graph are not checked")
        return StageResult(figures=figures)
    golden = {case: load_case(job.inputs[f"case.{case}"]) for case in job.options["cases"]}
    precision = job.options["precision"]
    job.progress(f"running the {precision} graph with its rounding in {len(golden)} cases")
    # engines are built from the written file
    graph = open_graph(job, emulate(load_model(job.outputs["model"]), precision))
    failed, numbers = summarize_checks(job, check_outputs(job, precision, graph, golden), golden)
    figures |= numbers
    if not failed:
        return StageResult(figures=figures)
    reason = failed[0].sentence() + and_more(failed)
    remedies = [f"if this error is acceptable, raise verify.{precision}"]
    figures["overflow"] = None
    origin = _origin(job, golden[failed[0].case])
    if origin is not None:
        figures["overflow"] = {"node": origin.node, "tensor": origin.tensor}
        problem = f"{origin} is not finite in {precision}"
        reason = f"the {precision} graph overflows: {problem}, and {reason}"
        remedies = ["bf16 has the range of float32"] if precision == "fp16" else []
    if job.options.get("tool") != "autocast":
        text = f"`doit localize {job.model}:ENGINE` finds the nodes that must stay in fp32"
        remedies.insert(0, f"{text}, and precision: auto-{precision} keeps them there")
    hint = "; ".join(remedies)
    return StageResult("failed", reason, hint, figures)


def _in_fp32(job: Job) -> StageResult:
    """Write the graph as it is: with any node in the precision it exceeds the limits."""
    source, target, precision = job.inputs["model"], job.outputs["model"], job.options["precision"]
    model = load_model(source)
    save_model(model, target)
    sizes = {"bytes_before": file_bytes(source), "bytes_after": file_bytes(target)}
    method = f"all nodes stay in fp32: no choice of nodes in {precision} is within the limits"
    figures = {"precision": precision, **_figures(model, method), "casts": 0, **sizes}
    return StageResult(figures={**figures, "warnings": [method]})


def _convert(job: Job, kept: Sequence[str]) -> dict[str, Any]:
    precision = job.options["precision"]
    source, target = job.inputs["model"], job.outputs["model"]
    if job.options.get("tool") == "autocast":
        model, figures = _by_autocast(source, precision, job)
    else:
        model, figures = _by_schemas(source, precision, job, kept)
    save_model(model, target)
    try:
        check_file(target, f"the graph converted to {precision}")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    return {
        "precision": precision,
        **figures,
        "bytes_before": file_bytes(source),
        "bytes_after": file_bytes(target),
    }


def _by_schemas(
    source: Path, precision: str, job: Job, searched: Sequence[str]
) -> tuple[ModelProto, dict[str, Any]]:
    model = load_model(source)
    warnings: list[str] = []
    if precision == "bf16":
        version = opsets(model).get("ai.onnx", 1)
        original = model
        model, why = raise_opset(model, BF16_OPSET, BF16_IR_VERSION)
        if model is not original:
            raised = f"opset {version} was raised to {BF16_OPSET}"
            warnings.append(f"{raised}, the first with bfloat16 convolutions")
        elif why:
            kept = f"opset {version} is kept, without bfloat16 for some operators"
            warnings.append(f"{kept}: {why}")
    job.progress(f"converting {len(model.graph.node)} nodes to {DTYPES[precision]}")
    exclude = [*job.options.get("exclude", ()), *searched]
    if exclude:
        named_nodes(model)  # for patterns of nodes without a unique name
    found = convert_precision(model, precision, exclude)
    warnings += [f"{problem}; its nodes stay in float32" for problem in found.problems.values()]
    if found.clamped:
        more = f" and {len(found.clamped) - 1} more" if len(found.clamped) > 1 else ""
        warnings.append(
            f"constants of masks are limited to the range of {DTYPES[precision]}:"
            f" {found.clamped[0]}{more}"
        )
    if found.flushed > _FLUSHED_WARNING * found.values:
        warnings.append(f"{found.flushed} of {found.values} non-zero weights became zero")
    figures = {
        "converted": found.converted,
        "casts": found.casts,
        "kept_fp32": list(found.kept),
        "kept_reasons": {**found.kept, **dict.fromkeys(searched, REASON)},
        "flushed_to_zero": {"values": found.flushed, "of": found.values},
        "warnings": warnings,
    }
    method = "by the ONNX schemas of the opset, node by node; inputs and outputs keep their types"
    return model, {**_figures(model, method), **figures}


def _by_autocast(source: Path, precision: str, job: Job) -> tuple[ModelProto, dict[str, Any]]:
    modelopt = import_module(_CONVERTERS["autocast"])
    dtype = DTYPES[precision]
    job.progress(f"converting to {dtype} with ModelOpt AutoCast")
    model: ModelProto = modelopt.autocast(source, precision)
    types = element_types(model)
    low = [
        node
        for node in model.graph.node
        if any(types.get(name) == ELEM_TYPES[dtype] for name in node.output)
    ]
    if all(node.op_type == "Cast" for node in low):
        raise StageError("ModelOpt AutoCast kept all nodes in float32", "use tool: builtin")
    full = [
        n
        for n in model.graph.node
        if n.op_type in HEAVY and types.get(n.output[0]) == TensorProto.FLOAT
    ]
    kept = {
        "converted": sum(node.op_type != "Cast" for node in low),
        "casts": sum(node.op_type == "Cast" for node in model.graph.node),
        "kept_fp32": [node.name or node.output[0] for node in full],
    }
    method = "by NVIDIA ModelOpt AutoCast; inputs and outputs keep their types"
    return model, {**_figures(model, method), **kept, "warnings": []}


def _origin(job: Job, golden: Case) -> OverflowOrigin | None:
    """Rerun one case to find the origin of an overflow."""
    typed = load_model(job.outputs["model"])
    nodes = list(typed.graph.node)
    emulated = emulate(typed, job.options["precision"])
    probes = add_probes(emulated)
    found = open_graph(job, emulated).run(golden.inputs)
    finite = {tensor for probe, tensor in probes.items() if found[probe].array == 0}
    return find_origin(nodes, finite, set(probes.values()) - finite)


def _figures(model: ModelProto, method: str) -> dict[str, Any]:
    stored = Counter(
        dtype_name(t.data_type)
        for t in model.graph.initializer
        if t.data_type != TensorProto.UNDEFINED
    )
    return {
        "method": method,
        "opset": opsets(model)["ai.onnx"],
        "initializers": dict(sorted(stored.items())),
    }
