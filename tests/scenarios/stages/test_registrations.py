"""Registered operators in real runs with a persistent worker server."""

from project_folder import ProjectFolder

from buildsys.workers import registry

NETS = """\
import torch


class Asinh(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x)
"""
SYMBOLICS = """\
def asinh(g, x):
    return g.op("Asinh", x)
"""
MODEL = """\
source: {python: plugins/nets.py:Asinh, seed: 1}
inputs: {x: {shape: [batch, 5]}}
dims: {batch: {min: 1, opt: 2, max: 3}}
simplify: {tool: none}
"""
REGISTERED = """\
symbolics:
  - {op: "aten::asinh", function: "plugins/symbolics.py:asinh"}
  - {op: "aten::acosh", function: "plugins/symbolics.py:asinh"}
"""


def servers(project: ProjectFolder) -> list[int]:
    return sorted(server.record.pid for server in registry.list_servers(project.environment))


def test_registrations_of_one_model_do_not_affect_another(project: ProjectFolder) -> None:
    (project.root / "plugins/nets.py").write_text(NETS)
    (project.root / "plugins/symbolics.py").write_text(SYMBOLICS)
    models = project.root / "configs/models"
    (models / "asinh.yaml").write_text(f"model: asinh\n{MODEL}{REGISTERED}")
    (models / "unregistered.yaml").write_text(f"model: unregistered\n{MODEL}")
    first = project.doit("report:asinh")
    assert first.code == 0, first.out + first.err
    report = (project.root / "build/asinh/report/report.md").read_text()
    assert (
        "export:asinh: aten::acosh (plugins/symbolics.py:asinh, opset 17) was never used" in report
    )
    before = servers(project)
    second = project.doit("export:unregistered")
    assert second.code == 2
    assert "cannot translate the operator aten::asinh to opset 17" in second.out + second.err
    assert set() < set(servers(project)) <= set(before), "another server was started"
