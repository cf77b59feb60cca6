"""Rules for the precision of nodes: 16-bit, or float32 with a reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, defs, numpy_helper

from buildsys.onnx_graphs.onnx_file import opsets, subgraphs
from buildsys.onnx_graphs.tensor_types import NOT_A_TENSOR, element_types, schema_of, types_at
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of

# Their results leave float16's range or lose important digits (indices, sums of squares,
# coordinates).
_SENSITIVE = frozenset((
    "CumSum", "NonMaxSuppression", "Pow", "Range", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceProd", "ReduceSumSquare", "RoiAlign",
))  # fmt: skip
_QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"))
# Attributes that set the type of the result.
_TYPE_ATTRIBUTES = frozenset(("dtype", "output_dtype", "output_datatype"))
# Outputs after the first follow stash_type.
_STATISTICS = frozenset(("LayerNormalization", "RMSNormalization"))
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
# Arithmetic on sizes and positions: float16 rounds integers beyond 2048, bfloat16 beyond 256.
_INDEX_OPERATORS = frozenset((
    "Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Expand", "Floor", "Gather", "Max", "Min", "Mod",
    "Mul", "Neg", "Reciprocal", "Reshape", "Round", "Slice", "Sqrt", "Squeeze", "Sub", "Transpose",
    "Unsqueeze",
))  # fmt: skip
# ONNX defines these in bfloat16; TensorRT's parser does not.
_NOT_IN_BFLOAT16 = frozenset(("ConvTranspose", "HardSwish", "LpNormalization", "Mish"))
# They select or move values, so a constant beyond the range in their results is a mask.
_SELECTIONS = frozenset((
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Max", "Min",
    "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice", "Split", "Squeeze", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where",
))  # fmt: skip
_ARITHMETIC = frozenset(("Add", "Mul", "Neg", "Sub"))  # (1 - mask) * -3.4e38
# the largest finite values; -3.4e38, the lowest float32, is also beyond bfloat16
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
_FLUSHED_LIMIT = 0.1  # share of a tensor's non-zero values that may become zero


@dataclass(frozen=True)
class NodePrecision:
    """Indices of a node's 16-bit inputs and outputs, or a reason."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()
    reason: str = ""  # also empty for nodes without float32

    @property
    def is_low(self) -> bool:
        """True if the node becomes 16-bit."""
        return bool(self.inputs or self.outputs)


class PrecisionRules:
    """The precision of one graph's nodes, decided in graph order.

    ``stored`` are float32 initializers that callers cannot replace, ``low_values`` their 16-bit
    values or ``problems`` the reasons for float32. ``masks`` are float32 tensors with constants
    beyond the 16-bit range, such as attention masks.
    """

    def __init__(self, model: ModelProto, dtype: str) -> None:
        self.dtype = dtype
        self.types = element_types(model)
        inputs = {value.name for value in model.graph.input}
        self.stored = {
            tensor.name: tensor
            for tensor in model.graph.initializer
            if tensor.data_type == TensorProto.FLOAT and tensor.name not in inputs
        }
        self.low_values: dict[str, Tensor] = {}
        self.problems: dict[str, str] = {}
        self.masks: set[str] = set()
        self._constant = set(self.stored)  # also what is computed from integers alone
        self._index_tensors: set[str] = set()
        self._opsets = opsets(model)

    def decide(self, node: NodeProto) -> NodePrecision:
        """Decide the precision of ``node``; its predecessors must be decided."""
        decision = self._decide(node)
        outputs = {name for name in node.output if self.is_float(name)}
        if not decision.outputs and self._is_mask(node):
            self.masks |= outputs
        if self._constant.issuperset(name for name in node.input if self.is_float(name)):
            self._constant |= outputs
        return decision

    def _is_mask(self, node: NodeProto) -> bool:
        """Check for unscaled results with constants beyond the 16-bit range."""
        if node.op_type == "ConstantOfShape":
            return self._rounding(fill_value(node))[1]
        floats = [name for name in node.input if self.is_float(name)]
        is_arithmetic = node.op_type in _ARITHMETIC and self._constant.issuperset(floats)
        if not is_arithmetic and node.op_type not in _SELECTIONS:
            return False
        for name in floats:
            stored = self.stored.get(name)
            if stored is not None and self._rounding(numpy_helper.to_array(stored))[1]:
                self.masks.add(name)
        return any(name in self.masks for name in floats)

    def _decide(self, node: NodeProto) -> NodePrecision:
        floats = {name for name in (*node.input, *node.output) if self.is_float(name)}
        is_index = self._is_index_arithmetic(node)
        if is_index:
            self._index_tensors.update(node.output)
        schema = schema_of(node, self._opsets)
        if any(subgraphs(node)):
            return NodePrecision(reason="it has subgraphs")
        if not floats:
            return NodePrecision()
        if schema is None:
            return NodePrecision(reason="ONNX does not define the operator")
        reason = "it computes sizes or positions" if is_index else self._why_kept(node, schema)
        return NodePrecision(reason=reason) if reason else self._slots(node, schema)

    def _why_kept(self, node: NodeProto, schema: defs.OpSchema) -> str:
        if node.op_type in _SENSITIVE:
            return "its results need the range or the digits of float32"
        if self.dtype == "bfloat16" and node.op_type in _NOT_IN_BFLOAT16:
            return f"TensorRT does not support {node.op_type} in {self.dtype}"
        if node.op_type in _QUANTIZERS:
            return "it quantizes"
        if _TYPE_ATTRIBUTES & schema.attributes.keys():
            return "an attribute sets the type of its result"
        if node.op_type == "ConstantOfShape" and self._rounding(fill_value(node))[1]:
            return "its value is out of range"
        for name in filter(None, (*node.input, *node.output)):
            if self.types.get(name, NOT_A_TENSOR) <= 0:
                return f"the type of {name} is not known or not a tensor"
        return ""

    def _slots(self, node: NodeProto, schema: defs.OpSchema) -> NodePrecision:
        inputs, outputs = (
            {
                place
                for place, name in enumerate(names)
                if self.is_float(name) and f"tensor({self.dtype})" in types_at(ports, place)
            }
            for names, ports in ((node.input, schema.inputs), (node.output, schema.outputs))
        )
        has_statistics = node.op_type in _STATISTICS
        outputs &= {0} if has_statistics else outputs
        fixed = any(self.is_float(n) and i not in outputs for i, n in enumerate(node.output))
        if not inputs | outputs or (fixed and not has_statistics):
            return NodePrecision(
                reason=f"{node.op_type} does not support {self.dtype} in this opset"
            )
        problems = [self._problem(node.input[place]) for place in sorted(inputs)]
        if reason := next(filter(None, problems), ""):
            return NodePrecision(reason=reason)
        return NodePrecision(frozenset(inputs), frozenset(outputs))

    def _problem(self, name: str) -> str:
        """Find the reason an initializer cannot be 16-bit, if any."""
        if name in self.stored and name not in self.low_values and name not in self.problems:
            values = numpy_helper.to_array(self.stored[name])
            low, beyond = self._rounding(values)
            nonzero = int(np.count_nonzero(values))
            # count bits without the sign: numpy's float16 arithmetic is slow
            lost = nonzero - int(np.count_nonzero(low.array.view(np.uint16) & np.uint16(0x7FFF)))
            if beyond:
                self.problems[name] = f"{name} has values up to {_largest(values):.3g}"
            elif lost > _FLUSHED_LIMIT * nonzero:
                self.problems[name] = f"{lost} of {nonzero} values of {name} would become zero"
            else:
                self.low_values[name] = low
        return self.problems.get(name, "")

    def _rounding(self, values: Array) -> tuple[Tensor, bool]:
        """Round ``values`` to 16 bits; True if a finite one overflowed."""
        with np.errstate(over="ignore"):
            largest = tensor_of(np.float32(_largest(values)), self.dtype)
            return tensor_of(values, self.dtype), not np.isfinite(largest.values())

    def _is_index_arithmetic(self, node: NodeProto) -> bool:
        if node.op_type not in _INDEX_OPERATORS:
            return False
        if node.op_type == "Cast" and self.types.get(node.input[0]) in _INTEGERS:
            return True
        inputs = [name for name in node.input if self.is_float(name) and name not in self.stored]
        return bool(inputs) and all(name in self._index_tensors for name in inputs)

    def is_float(self, name: str) -> bool:
        """Check for a float32 tensor."""
        return bool(name) and self.types.get(name) == TensorProto.FLOAT


def fill_value(node: NodeProto) -> Array:
    """Return the value of a ConstantOfShape node, an array of one element."""
    stored = (
        numpy_helper.to_array(attribute.t)
        for attribute in node.attribute
        if attribute.name == "value"
    )
    return next(stored, np.zeros(1, np.float32))


def _largest(values: Array) -> float:
    """Return the largest finite magnitude."""
    if values.size == 0:
        return 0.0
    low, high = float(values.min()), float(values.max())
    if not np.isfinite(low - high):  # an infinity or a NaN is among them
        finite = np.abs(values[np.isfinite(values)])
        return float(finite.max()) if finite.size else 0.0
    return max(-low, high)
