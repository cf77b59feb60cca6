"""Nodes that draw random numbers or are in training mode, found by reading a graph.

Running it twice would not find them all: two runs of a dropout of 0.1 % mostly agree.
"""

from collections.abc import Collection, Mapping
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper
from onnx.helper import get_attribute_value

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.onnx_file import STANDARD, subgraphs

RANDOM_OPERATORS = (
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
)  # fmt: skip
_TRAINED = ("BatchNormalization", "Dropout")
_SHAPE_ONLY = ("Shape", "Size")


def random_nodes(model: ModelProto) -> dict[str, NodeProto]:
    """Map random operators, and those in training mode, to their first node.

    Only nodes whose values reach an output count. The node of a local function is its caller.
    """
    return _Search(model).nodes


def refuse_random(places: Mapping[str, str], allowed: Collection[str]) -> None:
    """Raise CheckFailed for operators that are not allowed; ``places`` maps them to lines."""
    refused = sorted(places.keys() - set(allowed))
    if not refused:
        return
    named = [f"{name} ({places[name]})" if places[name] else name for name in refused]
    raise CheckFailed(
        f"the network draws random numbers or has layers in training mode: {', '.join(named)}",
        "call eval() on every layer, leave dropout and noise out, or make the noise an input; list"
        " them in export.random only if no output depends on them",
    )


class _Search:
    """The search through a model, against the direction of its data."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes: dict[str, NodeProto] = {}
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self._visit(model.graph, model, {}, {port.name for port in model.graph.output})

    def _visit(
        self,
        body: GraphProto | FunctionProto,
        owner: ModelProto | FunctionProto,
        outer: Mapping[str, TensorProto],
        used: set[str],
        caller: NodeProto | None = None,
    ) -> None:
        """Search a body for nodes with ``used`` outputs; adds what they use."""
        constants = {**outer, **_constants(body)}
        opset = next((i.version for i in owner.opset_import if i.domain in STANDARD), 0)
        for node in reversed(body.node):
            if not used.intersection(node.output):
                continue
            if node.op_type not in _SHAPE_ONLY:
                used.update(node.input)
            for graph in subgraphs(node):
                used.update(port.name for port in graph.output)
                self._visit(graph, owner, constants, used, caller)
            if function := self._functions.get((node.domain, node.op_type)):
                self._visit(function, function, {}, set(function.output), caller or node)
            elif node.domain in STANDARD and _is_random(node, opset, constants):
                self.nodes[node.op_type] = caller or node


def _constants(body: GraphProto | FunctionProto) -> dict[str, TensorProto]:
    stored = {t.name: t for t in body.initializer} if isinstance(body, GraphProto) else {}
    for node in body.node:
        if node.op_type == "Constant" and not node.attribute[0].ref_attr_name:
            value = get_attribute_value(node.attribute[0])
            if isinstance(value, TensorProto):
                stored[node.output[0]] = value
    return stored


def _is_random(node: NodeProto, opset: int, constants: Mapping[str, TensorProto]) -> bool:
    if node.op_type in RANDOM_OPERATORS:
        return True
    if node.op_type not in _TRAINED:
        return False
    attributes: dict[str, Any] = {
        a.name: get_attribute_value(a) for a in node.attribute if not a.ref_attr_name
    }
    if opset < 7:
        return not attributes.get("is_test", 0)
    if node.op_type == "BatchNormalization":
        is_training = attributes.get("training_mode", 0) if opset >= 14 else len(node.output) > 1
        # a layer without running statistics computes them from its input, in any mode
        return bool(is_training) and node.input[3] in constants
    ratio, mode = [*node.input[1:], "", ""][:2]
    is_off = mode in constants and not numpy_helper.to_array(constants[mode]).any()
    is_zero = ratio in constants and not numpy_helper.to_array(constants[ratio]).any()
    return opset >= 12 and mode != "" and not is_off and not is_zero
