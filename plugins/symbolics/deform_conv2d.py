"""torchvision::deform_conv2d for the torchscript exporter, as one node."""

from __future__ import annotations

from typing import Any

import torch
from torch.onnx import symbolic_helper


@symbolic_helper.parse_args("v", "v", "v", "v", "v", "i", "i", "i", "i", "i", "i", "i", "i", "b")
def deform_conv2d(
    g: Any, x: Any, weight: Any, offset: Any, mask: Any, bias: Any, stride_h: int, stride_w: int,
    pad_h: int, pad_w: int, dilation_h: int, dilation_w: int, groups: int, offset_groups: int,
    use_mask: bool,
) -> Any:  # fmt: skip
    """Return a node with the inputs and attributes of DeformConv (opset 19)."""
    if not use_mask:  # torchvision passes an empty tensor
        mask = _ones(g, offset)
    node = g.op(
        "custom_domain::deformConv2d", x, weight, offset, bias, mask,
        strides_i=[stride_h, stride_w], pads_i=[pad_h, pad_w, pad_h, pad_w],
        dilations_i=[dilation_h, dilation_w], group_i=groups, offset_group_i=offset_groups,
    )  # fmt: skip
    sizes = [(x, 0), (weight, 0), (offset, 2), (offset, 3)]
    return node.setType(
        x.type().with_sizes([symbolic_helper._get_tensor_dim_size(*size) for size in sizes])
    )


def _ones(g: Any, offset: Any) -> Any:
    """Return a mask of ones: the offsets' shape with half the channels."""
    points = symbolic_helper._get_tensor_dim_size(offset, 1) // 2
    batch, sizes = (
        g.op("Shape", offset, start_i=0, end_i=1),
        g.op("Shape", offset, start_i=2, end_i=4),
    )
    shape = g.op("Concat", batch, g.op("Constant", value_t=torch.tensor([points])), sizes, axis_i=0)
    return g.op("Expand", g.op("Constant", value_t=torch.tensor(1.0)), shape)
