"""What is shipped in plugins/ for operators that exporters or backends lack; named where the project has the files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Shipped(NamedTuple):
    """Registrations and decompositions that a manifest can name as they are."""

    operator: str  # of torch, or of the graph
    exporter: str  # whose registration it is
    text: str
    yaml: tuple[str, ...]  # one section per line
    opset: int  # the lowest that it works with
    backends: tuple[
        str, ...
    ] = ()  # for an operator of the graph: those that refuse it and take this instead

    @property
    def files(self) -> frozenset[str]:
        """Return the plugin files, relative to the project."""
        return frozenset(re.findall(r"plugins/\w+/\w+\.py", " ".join(self.yaml)))


_ASINH = (
    'symbolics: [{op: "aten::asinh", function: "plugins/symbolics/asinh.py:asinh", opset: 9}]',
)
_DEFORM_CONV = (
    'symbolics: [{op: "torchvision::deform_conv2d", function: "plugins/symbolics/deform_conv2d.py:deform_conv2d",'
    " opset: 19}]",
    'ops: [{op: "custom_domain::deformConv2d", function: {onnxruntime: "plugins/ops/deform_conv2d.py:deform_conv",'
    ' tensorrt: "plugins/ops/deform_conv2d.py:grid_sample_conv",'
    ' tensorrt_rtx: "plugins/ops/deform_conv2d.py:grid_sample_conv"}}]',
)
SHIPPED = (
    Shipped(
        "aten::asinh", "torchscript", "a symbolic function that writes ONNX's own Asinh", _ASINH, 9
    ),
    Shipped(
        "torchvision::deform_conv2d",
        "torchscript",
        "DeformConv for ONNX Runtime, GridSample and a 1x1 Conv for TensorRT",
        _DEFORM_CONV,
        19,
    ),
    Shipped(
        "DeformConv",
        "torchscript",
        "torchvision's deform_conv2d as GridSample and a 1x1 Conv for TensorRT, through TorchScript",
        _DEFORM_CONV,
        19,
        ("tensorrt", "tensorrt_rtx"),
    ),
)


def files_of(project: Path) -> frozenset[str]:
    """Return those of the shipped plugin files that a project has."""
    return frozenset(
        name for shipped in SHIPPED for name in shipped.files if (project / name).is_file()
    )
