"""Nodes in front of a graph that turn raw images into its inputs.

The numbers are those of Pillow, and with them of torchvision's transforms: a column pass, rounded
to 8 bits, then a row pass. ONNX's Resize has another border, no antialiasing before opset 18, and
OpenVINO ignores it. These nodes are in opset 13, and no integer of theirs needs 64 bits.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from buildsys.backends.layer_figures import IMAGE_NODES
from buildsys.errors import StageError
from buildsys.manifest.shape_cases import image_ports
from buildsys.onnx_graphs.onnx_file import elem_type, opsets
from buildsys.onnx_graphs.tensor_types import rename_uses

Value = str | int | float | np.ndarray[Any, Any]
Image = Mapping[str, Any]  # an input's preprocessing, shape and dtype
_LEAST_OPSET = 13
_REACH = {"bilinear": 1, "bicubic": 2}  # of a filter, in pixels of the smaller image
_HALF_BITS = 2.0**11  # a weight has 22 bits, as Pillow's


def prepend(model: ModelProto, images: Mapping[str, Image]) -> int:
    """Let inputs of a graph take raw images; return the number of new nodes.

    Raises: StageError: the graph's opset is older than 13.
    """
    opset = opsets(model)["ai.onnx"]
    if opset < _LEAST_OPSET:
        problem = f"the graph has opset {opset}, and preprocessing needs {_LEAST_OPSET}"
        raise StageError(problem, f"set export: {{opset: {_LEAST_OPSET}}} or a newer one")
    before = len(model.graph.node)
    for name, raw in image_ports(images).items():
        nodes = _ImageNodes(name, images[name], raw["shape"])
        rename_uses(model.graph, {name: nodes.result})
        for node in reversed(nodes.nodes):
            model.graph.node.insert(0, node)
        model.graph.initializer.extend(nodes.constants)
        port = next(value for value in model.graph.input if value.name == name)
        port.CopyFrom(helper.make_tensor_value_info(name, TensorProto.UINT8, raw["shape"]))
    return len(model.graph.node) - before


class _ImageNodes:
    """The nodes of one input."""

    def __init__(self, name: str, image: Image, shape: list[Any]) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._prefix, self._image = f"{IMAGE_NODES}{name}", image
        self._channels = int(shape[-1])
        *_, first, middle, last = image["shape"]
        high, wide = (middle, last) if image["layout"] == "nchw" else (first, middle)
        pixels = self._float(name)
        if image["resize"] is not None or image["size"] is not None:
            pixels = self._resized(name, pixels, int(high), int(wide))
        elif image["layout"] == "nchw":
            pixels = self._add("Transpose", pixels, perm=[0, 3, 1, 2])
        self.result = self._normalized(pixels)

    def _add(self, operator: str, *inputs: Value, **attributes: Any) -> str:
        """Add a node; plain numbers are vectors of one element."""
        name = f"{self._prefix}/{operator}_{len(self.nodes)}"
        names = [value if isinstance(value, str) else self._constant(value) for value in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], name, **attributes))
        return name

    def _constant(self, value: int | float | np.ndarray[Any, Any]) -> str:
        dtypes = {int: np.int64, float: np.float32}
        array = np.array([value], dtypes[type(value)]) if type(value) in dtypes else value
        name = f"{self._prefix}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _float(self, name: str) -> str:
        return self._add("Cast", name, to=TensorProto.FLOAT)

    def _resized(self, name: str, pixels: str, high: int, wide: int) -> str:
        """Resize and crop; channels come first, or last as in the network's layout."""
        shape = self._add("Shape", name)
        rows, columns = (self._add("Slice", shape, axis, axis + 1) for axis in (1, 2))
        if shorter := self._image["resize"]:
            least = self._add("Min", rows, columns)
            scaled = [self._add("Mul", side, int(shorter)) for side in (rows, columns)]
            sizes = [self._add("Div", side, least) for side in scaled]
            starts = [self._centered(*pair) for pair in zip(sizes, (high, wide), strict=True)]
        else:
            sizes, starts = [self._constant(high), self._constant(wide)], [self._constant(0)] * 2
        # in each pass, the resized axis is first: rows of memory are then added
        channels = self._channels
        width = self._add("Mul", columns, channels)
        x = self._add("Reshape", pixels, self._add("Concat", -1, width, axis=0))
        x = self._add("Transpose", x, perm=[1, 0])  # column, channel | image, row
        x = self._add("Reshape", x, self._add("Concat", columns, -1, axis=0))
        x = self._pass(x, columns, sizes[1], starts[1], wide)
        x = self._add("Reshape", x, self._add("Concat", -1, rows, axis=0))
        x = self._add("Transpose", x, perm=[1, 0])  # row | column, channel, image
        x = self._pass(x, rows, sizes[0], starts[0], high)
        x = self._add("Reshape", x, self._add("Concat", high * wide, -1, axis=0))
        x = self._add("Transpose", x, perm=[1, 0])  # channel, image | row, column
        x = self._add("Reshape", x, self._add("Concat", channels, -1, high, wide, axis=0))
        is_first = self._image["layout"] == "nchw"
        return self._add("Transpose", x, perm=[1, 0, 2, 3] if is_first else [1, 2, 3, 0])

    def _centered(self, size: str, crop: int) -> str:
        """Round the half of what a crop leaves out, ties to even as Python does."""
        rest = self._add("Sub", size, crop)
        half = self._add("Div", rest, 2)
        is_odd = self._add("Sub", rest, self._add("Mul", half, 2))
        rounds_up = self._add("Sub", half, self._add("Mul", self._add("Div", half, 2), 2))
        return self._add("Add", half, self._add("Mul", is_odd, rounds_up))

    def _pass(self, x: str, old: str, new: str, start: str, count: int) -> str:
        """Resize the first axis from ``old`` to ``new`` pixels; compute ``count`` from ``start``.

        Pixel i is a mean of those around the place (2i + 1) · old / (2 · new); places and distances
        are multiplied by 2 · new.
        """
        kind = self._image["interpolation"]
        pixel = self._add("Add", np.arange(count).reshape(-1, 1), start)
        place = self._add("Mul", self._add("Add", self._add("Mul", pixel, 2), 1), old)
        scale = self._add("Mul", self._add("Max", old, new), 2)
        reach = self._add("Mul", scale, _REACH[kind])
        low, high = self._add("Sub", place, reach), self._add("Add", place, reach)
        step = self._add("Mul", new, 2)
        first = self._add("Div", self._add("Max", self._add("Add", low, new), 0), step)
        end = self._add("Min", self._add("Div", self._add("Add", high, new), step), old)
        width = self._add("Add", self._add("Div", reach, new), 2)
        numbers = self._add("Range", np.array(0), self._add("Squeeze", width, 0), np.array(1))
        source = self._add("Add", first, numbers)
        middle = self._add("Mul", self._add("Add", self._add("Mul", source, 2), 1), new)
        distance = self._add("Abs", self._add("Sub", middle, place))
        weights = self._weights(kind, distance, scale, self._add("Less", source, end))
        source = self._add("Min", source, self._add("Sub", old, 1))
        sums = self._add("MatMul", weights, self._add("Gather", x, source, axis=0))
        if kind != "bilinear":
            ends = np.array(0, np.float32), np.array(255, np.float32)
            return self._add("Clip", self._add("Floor", self._add("Add", sums, 0.5)), *ends)
        upper, lower = (self._add("Slice", sums, i, i + 1, 1) for i in (0, 1))
        carry = self._add("Mul", self._add("Floor", lower), 1 / _HALF_BITS)
        return self._add("Floor", self._add("Add", self._add("Add", upper, carry), 0.5))

    def _weights(self, kind: str, distance: str, scale: str, is_inside: str) -> str:
        """Compute the weights of source pixels, normalized: [pixel, 1 or 2, source pixel].

        Bilinear weights are exact, in two halves of 11 bits: float32 adds their products without
        rounding, so ties are rounded as by Pillow. Other filters hardly have any.
        """
        if kind == "bilinear":
            weight = self._add("Max", self._add("Sub", scale, distance), 0)
            weight = self._add("Where", is_inside, weight, 0)
            total = self._add("ReduceSum", weight, 1, keepdims=1)
            scaled = self._add("Mul", weight, int(_HALF_BITS))
            upper = self._add("Div", scaled, total)
            rest = self._add("Sub", scaled, self._add("Mul", upper, total))
            rounded = self._add("Add", self._add("Mul", rest, int(2 * _HALF_BITS)), total)
            lower = self._add("Div", rounded, self._add("Mul", total, 2))
            halves = (self._add("Unsqueeze", self._float(half), 1) for half in (upper, lower))
            return self._add("Mul", self._add("Concat", *halves, axis=1), 1 / _HALF_BITS)
        t = self._add(
            "Div",
            self._float(distance),
            self._float(scale),
        )
        weight = self._add("Where", is_inside, self._cubic(t), 0.0)
        weight = self._add("Div", weight, self._add("ReduceSum", weight, 1, keepdims=1))
        return self._add("Unsqueeze", weight, 1)

    def _cubic(self, t: str) -> str:
        """Compute Keys' filter with a = -0.5."""
        value: Value = 0.0
        for end, factors in ((2.0, (-0.5, 2.5, -4.0, 2.0)), (1.0, (1.5, -2.5, 0.0, 1.0))):
            part: Value = factors[0]
            for factor in factors[1:]:
                part = self._add("Add", self._add("Mul", part, t), factor)
            value = self._add("Where", self._add("Less", t, end), part, value)
        return str(value)

    def _normalized(self, pixels: str) -> str:
        """Order the channels, divide, subtract the mean and divide by std."""
        image, is_first = self._image, self._image["layout"] == "nchw"
        if image["color"] == "bgr":
            order = np.array([2, 1, 0])
            pixels = self._add("Gather", pixels, order, axis=-3 if is_first else -1)
        mean, std = (np.asarray(image[field], np.float64) for field in ("mean", "std"))
        for operator, factor in (("Mul", 1 / (image["divide"] * std)), ("Add", -mean / std)):
            values = np.float32(factor).reshape((-1, 1, 1) if is_first else -1)
            pixels = self._add(operator, pixels, values)
        return self._add("Cast", pixels, to=elem_type(image["dtype"]))
