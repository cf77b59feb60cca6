"""Registrations and functions shipped in plugins/ for operators with poor support."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class ShippedPlugin(NamedTuple):
    """A ready solution for one operator, as YAML."""

    operator: str  # of torch, or of the graph
    exporter: str
    text: str
    yaml: tuple[str, ...]  # one section per line
    opset: int  # the lowest supported one
    backends: tuple[str, ...] = ()  # for an operator of the graph: the backends it helps

    @property
    def files(self) -> frozenset[str]:
        """The plugin files, relative to the project."""
        return frozenset(re.findall(r"plugins/\w+/\w+\.py", " ".join(self.yaml)))


_ASINH = (
    'symbolics: [{op: "aten::asinh", function: "plugins/symbolics/asinh.py:asinh", opset: 9}]',
)
_DEFORM_CONV = (
    'symbolics: [{op: "torchvision::deform_conv2d",'
    ' function: "plugins/symbolics/deform_conv2d.py:deform_conv2d", opset: 19}]',
    'ops: [{op: "custom_domain::deformConv2d",'
    ' function: {onnxruntime: "plugins/ops/deform_conv2d.py:deform_conv",'
    ' tensorrt: "plugins/ops/deform_conv2d.py:grid_sample_conv",'
    ' tensorrt_rtx: "plugins/ops/deform_conv2d.py:grid_sample_conv"}}]',
)
SHIPPED = (
    ShippedPlugin(
        "aten::asinh", "torchscript", "a symbolic function that writes ONNX's own Asinh", _ASINH, 9
    ),
    ShippedPlugin(
        "torchvision::deform_conv2d",
        "torchscript",
        "DeformConv for ONNX Runtime, GridSample and a 1x1 Conv for TensorRT",
        _DEFORM_CONV,
        19,
    ),
    ShippedPlugin(
        "DeformConv",
        "torchscript",
        "torchvision's deform_conv2d as GridSample and a 1x1 Conv for TensorRT,"
        " through TorchScript",
        _DEFORM_CONV,
        19,
        ("tensorrt", "tensorrt_rtx"),
    ),
)


def shipped_files(project: Path) -> frozenset[str]:
    """Return the shipped plugin files present in a project."""
    return frozenset(
        name for plugin in SHIPPED for name in plugin.files if (project / name).is_file()
    )
