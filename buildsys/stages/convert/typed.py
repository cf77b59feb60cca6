"""Conversion of a float32 graph to fp16 or bf16.

The schemas of the graph's opset decide: a node becomes 16-bit if its float32 results may be 16-bit.
It stays in float32, with casts around it, if the schema, its values or its meaning forbid it.
Graph inputs and outputs keep their types; subgraphs and local functions keep their precision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.errors import StageError
from buildsys.onnx_graphs.emulation import emulate
from buildsys.onnx_graphs.onnx_file import load_model, opsets, raise_opset
from buildsys.onnx_graphs.tensor_types import (
    DTYPES,
    ELEM_TYPES,
    FreshNames,
    element_types,
    outer_names,
    rename_outer,
)
from buildsys.onnx_graphs.tensors import Case, Tensor, tensor_of
from buildsys.stages.common.golden_check import OutputCheck
from buildsys.stages.common.intermediate_tensors import largest_losses
from buildsys.stages.common.node_patterns import (
    check_patterns,
    matching_pattern,
    named_nodes,
    node_name,
)
from buildsys.stages.convert.precision_rules import (
    LARGEST,
    NodePrecision,
    PrecisionRules,
    fill_value,
)
from buildsys.workers.job import Job

BF16_OPSET, BF16_IR_VERSION = 22, 10  # the first with bfloat16 convolution and pooling
HEAVY = frozenset(
    ("Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
)
Figures = dict[str, Any]
Golden = Mapping[str, Case]


def convert(job: Job, in_fp32: Sequence[str], golden: Golden) -> tuple[ModelProto, Figures]:  # noqa: ARG001
    """Convert the graph, except for the nodes that a search keeps ``in_fp32``.

    Raises: StageError: no expensive operator can be converted.
    """
    if job.options.get("tool") == "autocast":
        return _by_autocast(job)
    return _by_schemas(job, in_fp32)


def explain(
    job: Job, failed: Sequence[OutputCheck], golden: Golden, figures: Figures
) -> tuple[str, list[str]]:
    """Find the cause of a failure, if it is an overflow, and remedies."""
    precision, remedies = job.options["precision"], []
    if job.options.get("tool") != "autocast":
        command = f"`buildsys debug --fp32-nodes {job.model}:ENGINE`"
        text = f"{command} finds the nodes that must stay in fp32"
        remedies.append(f"{text}, and precision: auto-{precision} keeps them there")
    exact, written = (load_model(paths["model"]) for paths in (job.inputs, job.outputs))
    named_nodes(exact)
    nodes = [node.name for node in exact.graph.node]
    converted = emulate(written, precision)
    losses = largest_losses(job, exact, converted, nodes, golden[failed[0].case])
    if not (losses and math.isinf(losses[0].added)):
        figures["overflow"] = None
        return "", remedies
    origin = losses[0].result
    figures["overflow"] = {"node": origin.node, "tensor": origin.tensor}
    if precision == "fp16":
        remedies.append("bf16 has the range of float32")
    cause = f"the {precision} graph overflows: {origin} is not finite in {precision}, and "
    return cause, remedies


def _by_schemas(job: Job, in_fp32: Sequence[str]) -> tuple[ModelProto, Figures]:
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
    exclude = [*job.options.get("exclude", ()), *in_fp32]
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
        "kept_fp32": list(conversion.reasons),
        "kept_reasons": {
            **conversion.reasons,
            **dict.fromkeys(in_fp32, "the search keeps it for the limits"),
        },
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


@dataclass
class Conversion:
    """Summary of a converted graph."""

    casts: int = 0  # inserted
    clamped: list[str] = field(default_factory=list)  # masks limited to the 16-bit range
    reasons: dict[str, str] = field(default_factory=dict)  # node -> why it stays in float32
    problems: list[str] = field(default_factory=list)  # of initializers that stay in float32


def convert_precision(model: ModelProto, precision: str, exclude: Sequence[str] = ()) -> Conversion:
    """Convert ``model`` in place to ``precision``, ``fp16`` or ``bf16``.

    Nodes that match a pattern of ``exclude`` stay in float32.
    Raises: StageError: no operator, or none of the expensive ones, can compute in it, or a pattern
    matches no node.
    """
    dtype = DTYPES[precision]
    _hoist_constants(model.graph)
    rules = PrecisionRules(model, dtype)
    heavy = [node for node in model.graph.node if node.op_type in HEAVY]
    heavy_types = {rules.types.get(name) for node in heavy for name in node.output}
    if heavy_types == {ELEM_TYPES[dtype]}:
        return Conversion()
    if heavy_types and heavy_types <= set(ELEM_TYPES.values()):
        raise StageError(
            f"the network computes in another 16-bit type than {dtype}",
            "precision: fp32 keeps the types of the network",
        )
    check_patterns("convert.exclude", exclude, [node_name(node) for node in model.graph.node])
    decisions = [rules.decide(node) for node in model.graph.node]
    for index, node in enumerate(model.graph.node):
        pattern = matching_pattern(node_name(node), exclude)
        if pattern and decisions[index].is_low:
            decisions[index] = NodePrecision(reason=f"excluded by {pattern}")
    pairs = zip(model.graph.node, decisions, strict=True)
    reasons = {_name(node): decision.reason for node, decision in pairs if decision.reason}
    are_kept = bool(heavy) and all(_name(node) in reasons for node in heavy)
    if are_kept or not any(decision.is_low for decision in decisions):
        reason = reasons.get(_name(heavy[0]), "") if heavy else ""
        raise StageError(
            f"no expensive operator can compute in {dtype}"
            + (f": {_name(heavy[0])} stays in float32, because {reason}" if reason else ""),
            "export with a higher opset" if reason.endswith("opset") else "",
        )
    rewriter = _Rewriter(model.graph, rules, decisions, opsets(model).get("ai.onnx", 1))
    rewriter.rewrite()
    problems = list(rules.problems.values())
    return Conversion(rewriter.casts, rewriter.clamped, reasons, problems)


class _Rewriter:
    """Rewrites the nodes in order; ``_names`` maps (tensor, is 16-bit) to names."""

    def __init__(
        self, graph: GraphProto, rules: PrecisionRules, decisions: list[NodePrecision], opset: int
    ) -> None:
        self.clamped: list[str] = []
        self.casts = 0
        self._graph, self._rules, self._decisions = graph, rules, decisions
        self._opset = opset
        self._low_type = ELEM_TYPES[rules.dtype]
        self._outputs = {value.name for value in graph.output}
        self._low_tensors: set[str] = set()
        self._nodes: list[NodeProto] = []
        self._fresh = FreshNames(graph)
        names = (*(value.name for value in graph.input), *rules.stored)
        self._names: dict[tuple[str, bool], str] = {(name, False): name for name in names}

    def rewrite(self) -> None:
        self._store_initializers()
        for node, decision in zip(list(self._graph.node), self._decisions, strict=True):
            self._rewire_inputs(node, decision)
            self._nodes.append(node)
            self._rewire_outputs(node, decision)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        for value in self._graph.value_info:
            if value.name in self._low_tensors:
                value.type.tensor_type.elem_type = self._low_type

    def _rewire_inputs(self, node: NodeProto, decision: NodePrecision) -> None:
        for index, name in enumerate(node.input):
            if self._rules.is_float(name):
                node.input[index] = self._name_of(name, low=index in decision.inputs)
        captured = sorted(name for name in outer_names(node) if self._rules.is_float(name))
        rename_outer(node, {name: self._name_of(name, low=False) for name in captured})

    def _rewire_outputs(self, node: NodeProto, decision: NodePrecision) -> None:
        for index, name in enumerate(node.output):
            is_low = index in decision.outputs
            if is_low and name in self._outputs:
                node.output[index] = self._fresh.new(f"{name}_{self._rules.dtype}")
                self._names[name, True] = node.output[index]
                self._names[name, False] = name
                self._add_cast(node.output[index], name, TensorProto.FLOAT)
            else:
                self._names[name, is_low] = name
                self._low_tensors |= {name} if is_low else set()
        if 0 in decision.outputs:
            _set_result_type(node, self._rules.dtype)

    def _name_of(self, name: str, *, low: bool) -> str:
        """Name a tensor in one precision, with a cast if needed."""
        if (name, low) not in self._names:
            cast = self._fresh.new(f"{name}_as_{self._rules.dtype if low else 'float32'}")
            source = self._names[name, not low]
            if low and name in self._rules.masks and self._opset >= 11:  # bounds are attributes
                source = self._clamp(source)
            self._add_cast(source, cast, self._low_type if low else TensorProto.FLOAT)
            self._names[name, low] = cast
        return self._names[name, low]

    def _clamp(self, name: str) -> str:
        """Limit a mask to the 16-bit range, as ``model.half()`` builds it.

        Infinities would become NaN where all elements of a row are masked.
        """
        self.clamped.append(name)
        limit, result = LARGEST[self._rules.dtype], self._fresh.new(f"{name}_clamped")
        node = helper.make_node("Clip", [name], [result], self._fresh.new(f"{result}_clip"))
        for word, value in (("lowest", -limit), ("largest", limit)):
            bound = self._fresh.new(f"{result}_{word}")
            tensor = numpy_helper.from_array(np.array(value, np.float32), bound)
            self._graph.initializer.append(tensor)
            node.input.append(bound)
        self._nodes.append(node)
        return result

    def _add_cast(self, source: str, target: str, elem_type: int) -> None:
        name = self._fresh.new(f"{target}_cast")
        self._nodes.append(helper.make_node("Cast", [source], [target], name, to=elem_type))
        self.casts += 1

    def _store_initializers(self) -> None:
        """Store each initializer in the precisions its nodes use."""
        low: set[str] = set()
        full = set(self._outputs)
        for node, decision in zip(self._graph.node, self._decisions, strict=True):
            for index, name in enumerate(node.input):
                (low if index in decision.inputs else full).add(name)
            full |= outer_names(node)
        tensors, made = list(self._graph.initializer), []
        del self._graph.initializer[:]
        for tensor in tensors:
            name = tensor.name
            is_low = name in low and name in self._rules.stored
            if name in full or not is_low:
                self._graph.initializer.append(tensor)
            if is_low:
                low_name = self._fresh.new(f"{name}_{self._rules.dtype}") if name in full else name
                self._names[name, True] = low_name
                made.append(_tensor_proto(low_name, self._rules.low_values.pop(name)))
                self._low_tensors.add(low_name)
        self._graph.initializer.extend(made)


def _set_result_type(node: NodeProto, dtype: str) -> None:
    """Change the attribute for the type of a node's result, if any."""
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to":
            attribute.i = ELEM_TYPES[dtype]
    if node.op_type == "ConstantOfShape":
        value = _tensor_proto("value", tensor_of(fill_value(node), dtype))
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", value))


def _tensor_proto(name: str, values: Tensor) -> TensorProto:
    elem_type = ELEM_TYPES[values.dtype]
    return helper.make_tensor(name, elem_type, values.shape, values.array.tobytes(), raw=True)


def _hoist_constants(graph: GraphProto) -> None:
    """Turn float32 Constant nodes into initializers."""
    nodes = []
    for node in graph.node:
        values: Any = None
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            attribute = node.attribute[0]
            if attribute.name in ("value_float", "value_floats"):
                values = helper.get_attribute_value(attribute)
            elif attribute.name == "value" and attribute.t.data_type == TensorProto.FLOAT:
                values = numpy_helper.to_array(attribute.t)
        if values is None:
            nodes.append(node)
        else:
            tensor = numpy_helper.from_array(np.asarray(values, np.float32), node.output[0])
            graph.initializer.append(tensor)
    del graph.node[:]
    graph.node.extend(nodes)


def _name(node: NodeProto) -> str:
    return node.name or f"{node.op_type} of {node.output[0]}"
