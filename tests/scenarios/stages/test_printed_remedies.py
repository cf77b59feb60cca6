"""Remedies from error messages: their YAML works unchanged in the manifest."""

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
source: {{python: plugins/models/deform.py:Deformed}}
inputs: {{x: {{shape: [batch, 3, 8, 8]}}}}
outputs: {{y: {{}}}}
dims: {{batch: {{min: 1, opt: 2, max: 4}}}}
{export}
engines: [{{backend: onnxruntime, name: ort}}, {{backend: tensorrt_rtx, name: rtx}}]
bench: {{duration: 5ms, warmup: 1ms, baselines: [], noise: null}}
"""


def remedy(ran: Ran, name: str) -> str:
    """Return the YAML printed below a remedy."""
    found = re.search(rf"^( +)\d\. {name}: .*\n((?:\1 {{3,}}\S.*\n)+)", ran.out, re.MULTILINE)
    assert found, ran.out
    return re.sub(r"^ +", "", found[2], flags=re.MULTILINE)


@pytest.fixture
def deformed(project: ProjectFolder) -> ProjectFolder:
    (project.root / "plugins/models/deform.py").write_text(NETWORK)
    return project


def write(project: ProjectFolder, export: str) -> None:
    (project.root / "configs/models/deform.yaml").write_text(MANIFEST.format(export=export.strip()))


def test_the_tried_remedy_works_unchanged_and_refusals_name_others(deformed: ProjectFolder) -> None:
    write(deformed, "export: {opset: 17}")
    deformed.environment["BUILDSYS_TRIALS"] = "1"
    traced = deformed.doit("export:deform")
    deformed.environment["BUILDSYS_TRIALS"] = "0"
    assert traced.code == 2
    assert (
        "cannot translate the operator torchvision::deform_conv2d to opset 17 (plugins/mod"
        in traced.out
    )
    tried = re.search(
        r"^ +(export: .*) \(tried: it leads to a verified engine\)$", traced.out, re.M
    )
    assert tried, traced.out
    write(deformed, tried[1])
    captured = deformed.doit("--continue", "engine:deform:ort", "engine:deform:rtx")
    assert captured.code == 2
    assert "engine:deform:ort" in captured.passed | captured.restored  # by the trial
    assert "DeformConv: 1 node, from plugins/models/deform.py:13" in captured.out
    replacement = remedy(captured, "surgery")
    function = "plugins/hooks/deform_conv.py:replace_deform_conv"
    assert replacement.startswith(f'surgery: [{{function: "{function}"}}]')
    again = deformed.doit("verify:deform:ort", "engine:deform:rtx")
    assert "verify:deform:ort" in again.passed | again.restored
    # the reason of the next run leaves out the list of remedies
    assert re.search(
        r"^run +engine:deform:rtx  … last run failed: .*namespace correct\?\S*$",
        again.out,
        re.MULTILINE,
    )
