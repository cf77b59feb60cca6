"""Remedies that refusals of real runs name."""

import re

import pytest
from project_folder import ProjectFolder, Ran

pytest.importorskip("tensorrt_rtx")
NETWORK = """\
import torch
from torchvision.ops import deform_conv2d


class Deformed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.rand(3, 3, 3, 3))
        self.head = torch.nn.Conv2d(3, 18, 3)

    def forward(self, x):
        return deform_conv2d(x, self.head(x), self.weight)
"""
MANIFEST = """\
model: deform
source: {python: plugins/models/deform.py:Deformed}
inputs: {x: {shape: [batch, 3, 8, 8]}}
outputs: {y: {}}
dims: {batch: {min: 1, opt: 2, max: 4}}
export: {exporter: dynamo, opset: 19}
engines: [{backend: onnxruntime, name: ort}, {backend: tensorrt_rtx, name: rtx}]
"""


def remedy(ran: Ran, name: str) -> str:
    """Return the YAML printed below a remedy."""
    found = re.search(rf"^( +)\d\. {name}: .*\n((?:\1 {{3,}}\S.*\n)+)", ran.out, re.MULTILINE)
    assert found, ran.out
    return re.sub(r"^ +", "", found[2], flags=re.MULTILINE)


def test_refusals_name_remedies(project: ProjectFolder) -> None:
    (project.root / "plugins/models/deform.py").write_text(NETWORK)
    (project.root / "configs/models/deform.yaml").write_text(MANIFEST)
    captured = project.doit("--continue", "engine:deform:ort", "engine:deform:rtx")
    assert captured.code == 2
    assert "engine:deform:ort" in captured.passed
    assert "DeformConv: 1 node, from plugins/models/deform.py:13" in captured.out
    replacement = remedy(captured, "surgery")
    function = "plugins/hooks/deform_conv.py:replace_deform_conv"
    assert replacement.startswith(f'surgery: [{{function: "{function}"}}]')
    again = project.doit("verify:deform:ort", "engine:deform:rtx")
    assert "verify:deform:ort" in again.passed
    # the reason of the next run leaves out the list of remedies
    assert re.search(
        r"^run +engine:deform:rtx  … last run failed: .*namespace correct\?\S*$",
        again.out,
        re.MULTILINE,
    )
