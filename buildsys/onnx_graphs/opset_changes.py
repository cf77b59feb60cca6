"""Graphs in an older opset, for libraries that read no newer one, and in a newer one.

To an older one by hand: most changes between opsets add types, inputs, attributes or values, and a
node that does not use them is valid in both. onnx.version_converter leaves new attributes in the
file and cannot lower Pad.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, helper, version_converter
from onnx.helper import get_attribute_value
from onnx.numpy_helper import to_array

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import (
    ONE_MESSAGE_LIMIT,
    STANDARD,
    first_line,
    opsets,
    subgraphs,
)
from buildsys.onnx_graphs.tensors import Array

_IMPLIED = {("Split", "num_outputs")}  # attributes that repeat what the node says
# values that schemas do not list: the first opset with them, and their name before, if any
_NEW_VALUES: Mapping[tuple[str, str, bytes], tuple[int, bytes]] = {
    ("ScatterElements", "reduction", b"max"): (18, b""),
    ("ScatterElements", "reduction", b"min"): (18, b""),
    ("ScatterND", "reduction", b"max"): (18, b""),
    ("ScatterND", "reduction", b"min"): (18, b""),
    ("Pad", "mode", b"wrap"): (19, b""),
    ("Resize", "coordinate_transformation_mode", b"half_pixel_symmetric"): (19, b""),
    ("GridSample", "mode", b"linear"): (20, b"bilinear"),
    ("GridSample", "mode", b"cubic"): (20, b"bicubic"),
}


def lower_opset(
    model: ModelProto, opset: int, ir_version: int, changes: Sequence[str] = ()
) -> None:
    """Rewrite a model for an older opset and IR version, in place.

    Raises: StageError: a node uses what the older opset does not have; with ``changes`` to try.
    """
    try:
        for owner, body in ((model, model.graph), *((f, f) for f in model.functions)):
            for entry in owner.opset_import:
                if entry.domain in STANDARD:
                    _lower_body(body, entry.version, opset, {})
                    entry.version = min(entry.version, opset)
    except StageError as error:
        error.changes = changes
        raise
    model.ir_version = min(model.ir_version, ir_version)


def _lower_body(
    body: GraphProto | FunctionProto, before: int, opset: int, outer: Mapping[str, Array]
) -> None:
    constants = dict(outer)
    if isinstance(body, GraphProto):
        small = (tensor for tensor in body.initializer if len(tensor.dims) <= 1)
        constants |= {tensor.name: to_array(tensor) for tensor in small}
    for node in body.node:
        for inner in subgraphs(node):
            _lower_body(inner, before, opset, constants)
        if node.domain not in STANDARD:
            continue
        for attribute in node.attribute if node.op_type == "Constant" else ():
            is_number = attribute.name in ("value", "value_int", "value_ints")
            if is_number and not attribute.ref_attr_name:
                value: Any = get_attribute_value(attribute)
                is_tensor = attribute.name == "value"
                constants[node.output[0]] = to_array(value) if is_tensor else np.asarray(value)
        _lower_node(node, before, opset, constants)


def _lower_node(node: NodeProto, before: int, opset: int, constants: Mapping[str, Array]) -> None:
    new: Any = onnx.defs.get_schema(node.op_type, before, "")
    if new.since_version <= opset:
        return
    try:
        old: Any = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        raise _refusal(node, "the operator", opset) from None
    if len(node.output) > old.max_output:
        raise _refusal(node, f"output {new.outputs[old.max_output].name}", opset)
    while len(node.input) > old.max_input:
        name = new.inputs[len(node.input) - 1].name
        tensor = node.input.pop()
        value, was = constants.get(tensor), old.attributes.get(name)
        if tensor and (value is None or was is None):
            raise _refusal(node, f"the input {name}", opset)
        if value is not None and value.size:  # such as the axes of a reduction
            is_list = was.type == onnx.defs.OpSchema.AttrType.INTS
            numbers = value.reshape(-1).tolist()
            node.attribute.append(helper.make_attribute(name, numbers if is_list else numbers[0]))
    for attribute in list(node.attribute):
        name = attribute.name
        since, earlier = _NEW_VALUES.get((node.op_type, name, attribute.s), (0, b""))
        if name not in old.attributes:
            default = new.attributes[name].default_value
            has_value = default.type and not attribute.ref_attr_name
            is_default = has_value and get_attribute_value(attribute) == get_attribute_value(
                default
            )
            if not is_default and (node.op_type, name) not in _IMPLIED:
                raise _refusal(node, f"the attribute {name}", opset)
            node.attribute.remove(attribute)
        elif since > opset and not earlier:
            raise _refusal(node, f"{name} {attribute.s.decode()}", opset)
        elif since > opset:
            attribute.s = earlier


def _refusal(node: NodeProto, what: str, opset: int) -> StageError:
    name = node.name or node.output[0]
    return StageError(
        f"the graph cannot be lowered to opset {opset}: {what} of {node.op_type} (node {name}) is"
        " newer",
        "replace it in the network or in surgery, or use libraries that read newer opsets",
    )


def raise_opset(model: ModelProto, version: int, ir_version: int) -> tuple[ModelProto, str]:
    """Convert the model to ``version`` or above; give the reason if it stays."""
    if opsets(model).get("ai.onnx", 1) >= version:
        return model, ""
    model, problem = convert_opset(model, version)
    if not problem:
        model.ir_version = max(model.ir_version, ir_version)
    return model, problem


def convert_opset(model: ModelProto, version: int) -> tuple[ModelProto, str]:
    """Convert the model to an older or newer opset; give the reason if it stays."""
    if len(model.functions) > 0:
        return model, "onnx.version_converter drops local functions"
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > ONE_MESSAGE_LIMIT:
        return model, "onnx.version_converter takes graphs below 2 GB"
    try:
        converted = version_converter.convert_version(model, version)
    except (version_converter.ConvertError, RuntimeError, ValueError) as error:
        return model, first_line(error)
    typed = [value for value in converted.graph.value_info if value.type.tensor_type.elem_type]
    del converted.graph.value_info[:]  # some without a type, which ONNX Runtime refuses
    converted.graph.value_info.extend(typed)
    return converted, ""
