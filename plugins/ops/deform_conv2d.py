"""custom_domain::deformConv2d through DeformConv, or through operators of TensorRT.

Inputs, as of DeformConv in opset 19: x (N, C, H, W), weight (M, C / group, KH, KW),
offset (N, 2 · offset_group · KH · KW, OH, OW), bias (M),
mask (N, offset_group · KH · KW, OH, OW).
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxscript import opset19 as op
from onnxscript import script
from onnxscript.values import Opset

domain = Opset("custom_domain", 1)


@script(domain, default_opset=op)
def deform_conv(
    x, weight, offset, bias, mask,
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
    group: int, offset_group: int,
):  # fmt: skip
    """Use ONNX's operator, supported by ONNX Runtime."""
    return op.DeformConv(
        x, weight, offset, bias, mask,
        strides=strides, pads=pads, dilations=dilations, group=group, offset_group=offset_group,
    )  # fmt: skip


@script(domain, default_opset=op)
def grid_sample_conv(
    x, weight, offset, bias, mask,
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int],
    group: int, offset_group: int,
):  # fmt: skip
    """Sample each kernel point with GridSample, then apply a 1x1 Conv.

    With align_corners=0, position p on an axis of size s is (2p + 1) / s - 1 on the grid.
    """
    one = op.Constant(value_ints=[1])
    two = op.Constant(value_ints=[2])
    three = op.Constant(value_ints=[3])
    zero = op.Constant(value_ints=[0])
    minus = op.Constant(value_ints=[-1])
    groups = op.Reshape(op.Constant(value_int=offset_group), one)
    shape = op.Shape(x)
    channels = op.Slice(shape, one, two)
    height = op.Slice(shape, two, three)
    width = op.Slice(shape, three, op.Constant(value_ints=[4]))
    batch = op.Slice(shape, zero, one)
    out = op.Shape(offset, start=2)
    rows = op.Slice(out, zero, one)
    columns = op.Slice(out, one, two)
    kernel = op.Shape(weight, start=2)
    kernel_rows = op.Slice(kernel, zero, one)
    kernel_columns = op.Slice(kernel, one, two)
    points = kernel_rows * kernel_columns
    stride = op.Constant(value_ints=strides)
    pad = op.Constant(value_ints=pads)
    dilation = op.Constant(value_ints=dilations)
    start = op.Constant(value_int=0)
    step = op.Constant(value_int=1)

    # positions of the undeformed kernel: (1, K, OH, 1) and (1, K, 1, OW)
    kernel_y = op.Reshape(
        op.Range(start, op.Squeeze(kernel_rows), step), op.Constant(value_ints=[-1, 1])
    )
    kernel_x = op.Reshape(
        op.Range(start, op.Squeeze(kernel_columns), step), op.Constant(value_ints=[1, -1])
    )
    point_y = op.Reshape(op.Expand(kernel_y, kernel), op.Constant(value_ints=[1, -1, 1, 1]))
    point_x = op.Reshape(op.Expand(kernel_x, kernel), op.Constant(value_ints=[1, -1, 1, 1]))
    out_y = op.Reshape(
        op.Range(start, op.Squeeze(rows), step), op.Constant(value_ints=[1, 1, -1, 1])
    )
    out_x = op.Reshape(
        op.Range(start, op.Squeeze(columns), step), op.Constant(value_ints=[1, 1, 1, -1])
    )
    still_y = (
        out_y * op.Slice(stride, zero, one)
        - op.Slice(pad, zero, one)
        + point_y * op.Slice(dilation, zero, one)
    )
    still_x = (
        out_x * op.Slice(stride, one, two)
        - op.Slice(pad, one, two)
        + point_x * op.Slice(dilation, one, two)
    )

    # (N · groups, K, OH, OW) each
    moved = op.Reshape(offset, op.Concat(minus, points, two, out, axis=0))
    y = op.Squeeze(op.Slice(moved, zero, one, two), two) + op.CastLike(still_y, offset)
    x_ = op.Squeeze(op.Slice(moved, one, two, two), two) + op.CastLike(still_x, offset)
    unit = op.CastLike(op.Constant(value_float=1.0), offset)
    grid_y = (y + y + unit) / op.CastLike(height, offset) - unit
    grid_x = (x_ + x_ + unit) / op.CastLike(width, offset) - unit
    pair = op.Concat(op.Unsqueeze(grid_x, minus), op.Unsqueeze(grid_y, minus), axis=-1)
    grid = op.Reshape(pair, op.Concat(batch * groups, points * rows, columns, two, axis=0))

    image = op.Reshape(x, op.Concat(batch * groups, channels / groups, height, width, axis=0))
    samples = op.GridSample(image, grid, align_corners=0, mode="bilinear", padding_mode="zeros")
    weighed = samples * op.Reshape(
        mask, op.Concat(batch * groups, one, points * rows, columns, axis=0)
    )
    columns_ = op.Reshape(weighed, op.Concat(batch, channels * points, rows, columns, axis=0))
    flat = op.Reshape(weight, op.Concat(op.Shape(weight, start=0, end=1), minus, one, one, axis=0))
    return op.Conv(columns_, flat, bias, group=group)
