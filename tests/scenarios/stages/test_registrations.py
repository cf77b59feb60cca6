"""Registered operators in real runs with a persistent worker server."""

import re

import pytest
from project_folder import ProjectFolder

from buildsys.workers import registry

NETS = """\
import torch
import torchvision


class Asinh(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x)


class Deform(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.offsets = torch.nn.Conv2d(3, 18, 3)
        self.mask = torch.nn.Conv2d(3, 9, 3)
        self.conv = torchvision.ops.DeformConv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x, self.offsets(x), torch.sigmoid(self.mask(x)))
"""
SYMBOLICS = """\
import torch
from torch.onnx import symbolic_helper

deform_inputs = symbolic_helper.parse_args("v", "v", "v", "v", "v", *["i"] * 8, "b")


def asinh(g, x):
    return g.op("Asinh", x)


@deform_inputs
def deform(
    g, x, weight, offset, mask, bias, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    group, offset_group, use_mask,
):
    return g.op(
        "DeformConv", x, weight, offset, bias, *([mask] if use_mask else []),
        strides_i=[stride_h, stride_w], pads_i=[pad_h, pad_w, pad_h, pad_w],
        dilations_i=[dilation_h, dilation_w], group_i=group, offset_group_i=offset_group,
    )


def tutorial(g, x, weight, offset, *others):
    return g.op("custom::deform_conv2d", x, offset)


def short_cut(g, x, weight, offset, *others):
    ones = g.op("Constant", value_t=torch.ones(4, 3, 3, 3))
    return g.op("DeformConv", x, ones, offset)
"""
ASINH = "inputs: {x: {shape: [batch, 5]}}\n"
IMAGE = "inputs: {x: {shape: [batch, 3, 8, 8]}}\nexport: {opset: 19}\n"


def add_model(project: ProjectFolder, name: str, net: str, sections: str) -> None:
    (project.root / f"configs/models/{name}.yaml").write_text(
        f"model: {name}\nsource: {{python: plugins/nets.py:{net}, seed: 1}}\n"
        f"dims: {{batch: {{min: 1, opt: 2, max: 3}}}}\nsimplify: {{tool: none}}\n{sections}"
    )


def symbolic(op: str, function: str) -> str:
    return f'{{op: "{op}", function: "plugins/symbolics.py:{function}"}}'


@pytest.fixture
def project_with_models(project: ProjectFolder) -> ProjectFolder:
    (project.root / "plugins/nets.py").write_text(NETS)
    (project.root / "plugins/symbolics.py").write_text(SYMBOLICS)
    unused = symbolic("aten::acosh", "asinh")
    add_model(
        project,
        "asinh",
        "Asinh",
        f"{ASINH}symbolics: [{symbolic('aten::asinh', 'asinh')}, {unused}]\n",
    )
    add_model(project, "unregistered", "Asinh", ASINH)
    return project


def servers(project: ProjectFolder) -> list[int]:
    return sorted(server.record.pid for server in registry.list_servers(project.environment))


def test_registrations_of_one_model_do_not_affect_another(
    project_with_models: ProjectFolder,
) -> None:
    first = project_with_models.doit("report:asinh")
    assert first.code == 0, first.out + first.err
    report = (project_with_models.root / "build/asinh/report/report.md").read_text()
    assert (
        "export:asinh: aten::acosh (plugins/symbolics.py:asinh, opset 17) was never used" in report
    )
    before = servers(project_with_models)
    second = project_with_models.doit("export:unregistered")
    assert second.code == 2
    assert "cannot translate the operator aten::asinh to opset 17" in second.out + second.err
    assert set() < set(servers(project_with_models)) <= set(before), "another server was started"


def test_a_symbolic_that_drops_inputs_passes_the_export_and_fails_validation(
    project_with_models: ProjectFolder,
) -> None:
    for name in ("deform", "tutorial", "short_cut"):
        entry = symbolic("torchvision::deform_conv2d", name)
        add_model(project_with_models, name, "Deform", f"{IMAGE}symbolics: [{entry}]\n")
    ran = project_with_models.doit(
        "--continue", "validate:deform", "validate:tutorial", "validate:short_cut"
    )
    assert {f"export:{name}" for name in ("deform", "tutorial", "short_cut")} <= ran.passed
    assert "validate:deform" in ran.passed
    reasons = failed(ran.out)
    assert (
        "nothing implements custom::deform_conv2d for ONNX Runtime" in reasons["validate:tutorial"]
    )
    assert "output0 differs in case min of the exported graph" in reasons["validate:short_cut"]


def failed(out: str) -> dict[str, str]:
    """Return the reasons of failed targets."""
    return {
        match[1]: match[2] for match in re.finditer(r"^failed +(\S+) +(.+)$", out, re.MULTILINE)
    }
