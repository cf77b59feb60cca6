"""Conversion of a float32 graph to fp16 or bf16.

The schemas of the graph's opset decide: a node becomes 16-bit if its float32 results may be 16-bit.
It stays in float32, with casts around it, if the schema, its values or its meaning forbid it.
Graph inputs and outputs keep their types; subgraphs and local functions keep their precision.
"""

from collections.abc import Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper
from onnx.numpy_helper import from_array, to_array

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import load_model, opsets, subgraphs
from buildsys.onnx_graphs.opset_changes import raise_opset
from buildsys.onnx_graphs.tensor_types import (
    DTYPES,
    ELEM_TYPES,
    NOT_A_TENSOR,
    FreshNames,
    element_types,
    outer_names,
    rename_outer,
    schema_of,
    types_at,
)
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of
from buildsys.stages.common.golden_check import and_more
from buildsys.stages.common.node_patterns import (
    check_patterns,
    matching_pattern,
    named_nodes,
    node_name,
)
from buildsys.stages.convert.stage import Converted
from buildsys.stages.search.result import REASON
from buildsys.workers.job import Job

BF16_OPSET, BF16_IR_VERSION = 22, 10  # the first with bfloat16 convolution and pooling
# the largest finite values; -3.4e38, the lowest float32, is also beyond bfloat16
LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
HEAVY = frozenset(
    ("Attention", "Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN")
)
# Their results leave float16's range or lose important digits (indices, sums of squares,
# coordinates), or they quantize.
_SENSITIVE = frozenset((
    "CumSum", "DequantizeLinear", "DynamicQuantizeLinear", "NonMaxSuppression", "Pow",
    "QuantizeLinear", "Range", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd",
    "ReduceSumSquare", "RoiAlign",
))  # fmt: skip
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
_FLUSHED_LIMIT = 0.1  # share of a tensor's non-zero values that may become zero


def convert(job: Job, in_fp32: Sequence[str], golden: object) -> Converted:  # noqa: ARG001
    """Convert the graph, except for the nodes that a search keeps ``in_fp32``.

    Raises: StageError: no expensive operator can be converted.
    """
    precision, model = job.options["precision"], load_model(job.inputs["model"])
    warnings = []
    if precision == "bf16":
        model, problem = raise_opset(model, BF16_OPSET, BF16_IR_VERSION)
        if problem:
            text = f"opset {opsets(model)['ai.onnx']} is kept, without bfloat16 for some operators"
            warnings.append(f"{text}: {problem}")
    job.progress(f"converting {len(model.graph.node)} nodes to {DTYPES[precision]}")
    exclude = [*job.options.get("exclude", ()), *in_fp32]
    if exclude:
        named_nodes(model)  # for patterns of nodes without a unique name
    conversion = convert_precision(model, precision, exclude)
    problems = [problem for _, problem in conversion.rounded.values() if problem]
    warnings += [f"{problem}; its nodes stay in float32" for problem in problems]
    if clamped := conversion.clamped:
        limited = f"constants of masks are limited to the range of {DTYPES[precision]}"
        warnings.append(f"{limited}: {clamped[0]}{and_more(clamped)}")
    reasons = {**conversion.reasons, **dict.fromkeys(in_fp32, REASON)}
    command = f"`buildsys debug --fp32-nodes {job.model}:ENGINE`"
    auto = f"precision: auto-{precision} keeps them there"
    remedy = f"{command} finds the nodes that must stay in fp32, and {auto}"
    return Converted(model, {"kept_reasons": reasons, "warnings": warnings}, [remedy])


class _InFloat32(Exception):
    """The reason that a node stays in float32."""


def convert_precision(
    model: ModelProto, precision: str, exclude: Sequence[str] = ()
) -> "Conversion":
    """Convert ``model`` in place to ``precision``, ``fp16`` or ``bf16``.

    Nodes that match a pattern of ``exclude`` stay in float32.
    Raises: StageError: no operator, or none of the expensive ones, can compute in it, or a pattern
    matches no node.
    """
    dtype = DTYPES[precision]
    _hoist_constants(model.graph)
    conversion = Conversion(model, dtype)
    heavy = {node_name(n): n.output for n in model.graph.node if n.op_type in HEAVY}
    heavy_types = {conversion.types.get(name) for names in heavy.values() for name in names}
    if heavy_types == {ELEM_TYPES[dtype]}:
        return conversion
    check_patterns("convert.exclude", exclude, [node_name(node) for node in model.graph.node])
    conversion.rewrite(exclude)
    is_low = ELEM_TYPES[dtype] in heavy_types or not conversion.low_nodes.isdisjoint(heavy)
    if not conversion.low_nodes or (heavy and not is_low):
        first = next(iter(heavy), "")
        reason = conversion.reasons.get(first, "")
        why = f": {first} stays in float32, because {reason}" if reason else ""
        raise StageError(
            f"no expensive operator can compute in {dtype}{why}",
            "export with a higher opset, or keep the types of the network by precision: fp32",
        )
    return conversion


class Conversion:
    """Decides and rewrites the nodes of one graph in order.

    ``reasons`` say why nodes stay in float32. A tensor has up to two names, in float32 and in 16
    bits; a cast makes the second one where it is needed. Masks are float32 tensors with constants
    beyond the 16-bit range, such as attention masks; ``clamped`` lists those limited to it.
    """

    def __init__(self, model: ModelProto, dtype: str) -> None:
        self.types, self.low_nodes = element_types(model), set[str]()
        self.clamped: list[str] = []
        self.reasons: dict[str, str] = {}
        self._graph, self._dtype, self._opsets = model.graph, dtype, opsets(model)
        self._fresh, self._nodes = FreshNames(model.graph), list[NodeProto]()
        inputs = {value.name for value in model.graph.input}
        self._stored = {  # callers cannot replace them
            tensor.name: tensor
            for tensor in model.graph.initializer
            if tensor.data_type == TensorProto.FLOAT and tensor.name not in inputs
        }
        self.rounded: dict[str, tuple[Tensor, str]] = {}  # initializer -> values, or a problem
        self._names: dict[tuple[str, bool], str] = {
            (name, False): name for name in (*inputs, *self._stored)
        }
        self._outputs = {value.name for value in model.graph.output}
        self._in_full = set(self._outputs)
        self._masks: set[str] = set()
        # constants are computed from initializers and integers alone
        self._constants, self._index_tensors = set(self._stored), set[str]()

    def rewrite(self, exclude: Sequence[str]) -> None:
        """Rewrite the graph, except for nodes that match ``exclude``."""
        for node in list(self._graph.node):
            low_inputs: set[int] = set()
            low_outputs: set[int] = set()
            try:
                low_inputs, low_outputs = self._low_places(node, exclude)
            except _InFloat32 as reason:
                self.reasons[node_name(node)] = str(reason)
            self.low_nodes |= {node_name(node)} if low_inputs | low_outputs else set()
            self._track(node, is_low=bool(low_outputs))
            self._rewrite(node, low_inputs, low_outputs)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        self._store_initializers()

    def _low_places(self, node: NodeProto, exclude: Sequence[str]) -> tuple[set[int], set[int]]:
        """List the places of a node's 16-bit inputs and outputs; none without float32.

        Raises: _InFloat32: it stays in float32.
        """
        is_index = self._is_index_arithmetic(node)
        if is_index:
            self._index_tensors.update(node.output)
        if any(subgraphs(node)):
            raise _InFloat32("it has subgraphs")
        if not any(map(self._is_float, (*node.input, *node.output))):
            return set(), set()
        schema = schema_of(node, self._opsets)
        if schema is None:
            raise _InFloat32("ONNX does not define the operator")
        if is_index:
            raise _InFloat32("it computes sizes or positions")
        if node.op_type in _SENSITIVE:
            raise _InFloat32("its results need the range or the digits of float32")
        if self._dtype == "bfloat16" and node.op_type in _NOT_IN_BFLOAT16:
            raise _InFloat32(f"TensorRT does not support {node.op_type} in {self._dtype}")
        if _TYPE_ATTRIBUTES & schema.attributes.keys() or node.op_type == "ConstantOfShape":
            raise _InFloat32("an attribute sets the type of its result")
        for name in filter(None, (*node.input, *node.output)):
            if self.types.get(name, NOT_A_TENSOR) <= 0:
                raise _InFloat32(f"the type of {name} is not known or not a tensor")
        inputs, outputs = (
            {
                place
                for place, name in enumerate(names)
                if self._is_float(name) and f"tensor({self._dtype})" in types_at(ports, place)
            }
            for names, ports in ((node.input, schema.inputs), (node.output, schema.outputs))
        )
        has_statistics = node.op_type in _STATISTICS
        outputs &= {0} if has_statistics else outputs
        fixed = any(self._is_float(n) and i not in outputs for i, n in enumerate(node.output))
        if not inputs | outputs or (fixed and not has_statistics):
            raise _InFloat32(f"{node.op_type} does not support {self._dtype} in this opset")
        for place in sorted(inputs):
            if problem := self._rounding_problem(node.input[place]):
                raise _InFloat32(problem)
        if pattern := matching_pattern(node_name(node), exclude):
            raise _InFloat32(f"excluded by {pattern}")
        return inputs, outputs

    def _track(self, node: NodeProto, *, is_low: bool) -> None:
        """Note which results are constant, and which are masks: unscaled beyond 16 bits."""
        results, floats = (
            {n for n in names if self._is_float(n)} for names in (node.output, node.input)
        )
        is_constant, is_mask = floats <= self._constants, False
        if node.op_type == "ConstantOfShape":
            is_mask = any(self._round(to_array(value.t))[1] for value in node.attribute)
        elif node.op_type in _SELECTIONS or (node.op_type in _ARITHMETIC and is_constant):
            stored = [name for name in floats if name in self._stored]
            self._masks |= {n for n in stored if self._round(to_array(self._stored[n]))[1]}
            is_mask = not self._masks.isdisjoint(floats)
        self._masks |= results if is_mask and not is_low else set()
        self._constants |= results if is_constant else set()

    def _rounding_problem(self, name: str) -> str:
        """Find the reason an initializer cannot be 16-bit, if any."""
        if name not in self._stored:
            return ""
        if name not in self.rounded:
            values, problem = to_array(self._stored[name]), ""
            low, is_beyond = self._round(values)
            nonzero = int(np.count_nonzero(values))
            lost = nonzero - int(np.count_nonzero(low.values()))
            if is_beyond:
                largest = np.abs(values[np.isfinite(values)]).max()
                problem = f"{name} has values up to {largest:.3g}"
            elif lost > _FLUSHED_LIMIT * nonzero:
                problem = f"{lost} of {nonzero} values of {name} would become zero"
            self.rounded[name] = low, problem
        return self.rounded[name][1]

    def _round(self, values: Array) -> tuple[Tensor, bool]:
        """Round ``values`` to 16 bits; True if a finite one overflowed."""
        with np.errstate(over="ignore"):
            low = tensor_of(values, self._dtype)
        return low, bool((np.isfinite(values) & ~np.isfinite(low.values())).any())

    def _is_index_arithmetic(self, node: NodeProto) -> bool:
        if node.op_type not in _INDEX_OPERATORS:
            return False
        if node.op_type == "Cast" and self.types.get(node.input[0]) in _INTEGERS:
            return True
        computed = {n for n in node.input if self._is_float(n) and n not in self._stored}
        return bool(computed) and computed <= self._index_tensors

    def _is_float(self, name: str) -> bool:
        return bool(name) and self.types.get(name) == TensorProto.FLOAT

    def _rewrite(self, node: NodeProto, low_inputs: set[int], low_outputs: set[int]) -> None:
        for place, name in enumerate(node.input):
            if self._is_float(name):
                node.input[place] = self._name_of(name, low=place in low_inputs)
        captured = sorted(filter(self._is_float, outer_names(node)))
        rename_outer(node, {name: self._name_of(name, low=False) for name in captured})
        self._nodes.append(node)
        for place in range(len(node.output)):
            name, is_low = node.output[place], place in low_outputs
            self._names[name, is_low] = name
            if is_low and name in self._outputs:
                node.output[place] = self._fresh.new(f"{name}_{self._dtype}")
                self._names[name, True], self._names[name, False] = node.output[place], name
                self._add_cast(node.output[place], name, TensorProto.FLOAT)
        for attribute in node.attribute if low_outputs and node.op_type == "Cast" else ():
            if attribute.name == "to":
                attribute.i = ELEM_TYPES[self._dtype]

    def _name_of(self, name: str, *, low: bool) -> str:
        """Name a tensor in one precision, with a cast or a copy if needed."""
        self._in_full |= set() if low else {name}
        if (name, low) in self._names:
            return self._names[name, low]
        if low and name in self.rounded:
            self._names[name, low] = self._fresh.new(f"{name}_{self._dtype}")
            return self._names[name, low]
        cast = self._fresh.new(f"{name}_as_{self._dtype if low else 'float32'}")
        source = self._names[name, not low]
        if low and name in self._masks and self._opsets.get("ai.onnx", 1) >= 11:
            source = self._clamp(source)  # before, bounds are attributes
        self._add_cast(source, cast, ELEM_TYPES[self._dtype] if low else TensorProto.FLOAT)
        self._names[name, low] = cast
        return cast

    def _clamp(self, name: str) -> str:
        """Limit a mask to the 16-bit range, as ``model.half()`` builds it.

        Infinities would become NaN where all elements of a row are masked.
        """
        self.clamped.append(name)
        limit, result = LARGEST[self._dtype], self._fresh.new(f"{name}_clamped")
        node = helper.make_node("Clip", [name], [result], self._fresh.new(f"{result}_clip"))
        for word, value in (("lowest", -limit), ("largest", limit)):
            bound = self._fresh.new(f"{result}_{word}")
            self._graph.initializer.append(from_array(np.array(value, np.float32), bound))
            node.input.append(bound)
        self._nodes.append(node)
        return result

    def _add_cast(self, source: str, target: str, elem_type: int) -> None:
        name = self._fresh.new(f"{target}_cast")
        self._nodes.append(helper.make_node("Cast", [source], [target], name, to=elem_type))

    def _store_initializers(self) -> None:
        """Store each initializer in the precisions its nodes use."""
        low = {n: self._names[n, True] for n in self.rounded if (n, True) in self._names}
        # without a use in float32 the 16-bit values get its name
        renamed = {new: name for name, new in low.items() if name not in self._in_full}
        for node in self._graph.node:
            node.input[:] = [renamed.get(name, name) for name in node.input]
        replaced = set(renamed.values())
        tensors = [t for t in self._graph.initializer if t.name not in replaced]
        for name, new in low.items():
            values, _ = self.rounded[name]
            content, elem_type = values.array.tobytes(), ELEM_TYPES[self._dtype]
            stored_name = renamed.get(new, new)
            tensors.append(helper.make_tensor(stored_name, elem_type, values.shape, content, True))
        del self._graph.initializer[:]
        self._graph.initializer.extend(tensors)
        for value in self._graph.value_info:
            if value.name in replaced or self._names.get((value.name, True)) == value.name:
                value.type.tensor_type.elem_type = ELEM_TYPES[self._dtype]


def _hoist_constants(graph: GraphProto) -> None:
    """Turn float32 Constant nodes into initializers."""
    nodes = []
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            name, value = node.attribute[0].name, helper.get_attribute_value(node.attribute[0])
            if name == "value" and value.data_type == TensorProto.FLOAT:
                value, name = to_array(value), "value_floats"
            if name in ("value_float", "value_floats"):
                tensor = from_array(np.asarray(value, np.float32), node.output[0])
                graph.initializer.append(tensor)
                continue
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
