"""Symbolics for the torchscript exporter: registration and errors."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from stage_jobs import manifest, stage_job
from torch.onnx._internal.torchscript_exporter import registration

from buildsys.errors import StageError
from buildsys.stages.common.graph_runs import open_graph
from buildsys.stages.export import stage as export
from buildsys.workers.job import StageResult

NET = """\
import torch
import torchvision


class Asinh(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x)


class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.eigvalsh(x.reshape(-1, 2, 2))


class Bessel(torch.nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Both(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x) + torch.nn.functional.gelu(x)


@torch.library.custom_op("tested::shrink", mutates_args=())
def shrink(x: torch.Tensor, by: float = 0.5) -> torch.Tensor:
    return x * by


class Shrink(torch.nn.Module):
    def forward(self, x):
        return shrink(x, 0.25)


def symbolic(g, x):
    return g.op("Asinh", x)


def shrinking(g, x, by):
    return g.op("Mul", x, by)
"""
GOOD = 'def f(g, x):\n    return g.op("Asinh", x)\n'
DECORATED = """\
from torch.onnx._internal.torchscript_exporter import registration

@registration.onnx_symbolic("aten::asinh", opset=9)
def asinh(g, x):
    return g.op("Asinh", x)
"""


@pytest.fixture(autouse=True)
def _restored_registry() -> Iterator[None]:
    """Restore torch's registry, as tests share one process."""
    from buildsys.backends.operator_support import load_symbolics

    load_symbolics()  # imported here: one second, so not at collection
    groups = registration.registry._registry
    before = {
        name: (dict(g._functions._overrides), dict(g._functions._merged))
        for name, g in groups.items()
    }
    yield
    for name, group in list(groups.items()):
        if name not in before:
            del groups[name]
        else:
            group._functions._overrides, group._functions._merged = before[name]


class Project:
    """A folder with the network's file and a test's plugins."""

    def __init__(self, root: Path) -> None:
        self.root = root / "project"
        self.build = root / "build"
        self.write("nets.py", NET)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def export(
        self, *symbolics: dict[str, Any], net: str = "Asinh", opset: int = 17, **more: Any
    ) -> StageResult:
        sections: dict[str, Any] = {
            "source": {"python": f"nets.py:{net}"},
            "export": {"opset": opset, **more},
        }
        resolved = manifest(**sections, symbolics=list(symbolics))
        return export.run(stage_job("export", resolved, self.build, self.root))

    def failure(self, *symbolics: dict[str, Any], **more: Any) -> str:
        with pytest.raises(StageError) as error:
            self.export(*symbolics, **more)
        return str(error.value)

    def operators(self) -> list[str]:
        return [node.op_type for node in onnx.load(self.build / "m/export/model.onnx").graph.node]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def named(function: str = "p.py:f", op: str = "aten::asinh", **more: Any) -> dict[str, Any]:
    return {"op": op, "function": function, **more}


# --- what is registered ---


@pytest.mark.parametrize("opset", [9, 20])
def test_a_function_is_used_at_every_opset_that_it_reaches(project: Project, opset: int) -> None:
    project.write("p.py", GOOD)
    figures = project.export(named(opset=9), opset=opset).figures
    assert (figures["opset"], project.operators(), figures["warnings"]) == (opset, ["Asinh"], [])
    x = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
    session = onnxruntime.InferenceSession(project.build / "m/export/model.onnx")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.arcsinh(x), rtol=1e-5)


def test_a_module_registers_by_the_decorator(project: Project) -> None:
    project.write("p.py", DECORATED)
    assert project.export({"module": "p.py"}).figures["warnings"] == []
    assert project.operators() == ["Asinh"]


def test_a_function_in_the_file_of_the_network_does_not_execute_it_again(project: Project) -> None:
    project.export(named("nets.py:symbolic"))
    assert project.operators() == ["Asinh"]


def test_an_operator_of_the_networks_own_file(project: Project) -> None:
    project.export(named("nets.py:shrinking", op="tested::shrink"), net="Shrink")
    assert "Mul" in project.operators()


def test_without_an_opset_the_function_comes_before_torchs_own(project: Project) -> None:
    project.write("p.py", "def f(g, x, approximate):\n    return x\n")
    figures = project.export(
        named("nets.py:symbolic"), named(op="aten::gelu"), net="Both", opset=20
    ).figures
    assert (project.operators(), figures["warnings"]) == (["Asinh", "Add"], [])


def test_a_function_of_an_older_opset_than_torchs_own_is_not_used(project: Project) -> None:
    project.write("p.py", "def f(g, x, approximate):\n    return x\n")
    gelu = named(op="aten::gelu", opset=9)
    warnings = project.export(named("nets.py:symbolic"), gelu, net="Both", opset=20).figures[
        "warnings"
    ]
    assert "Gelu" in project.operators()
    assert warnings == [
        "aten::gelu (p.py:f, opset 9) was never used: the network has no such operator, or torch's"
        " own function takes precedence"
    ]


# --- what is wrong ---


@pytest.mark.parametrize(
    ("plugin", "entry", "expected"),
    [
        (
            "def f(g, x, y):\n    ...\n",
            {},
            "aten::asinh (p.py:f, opset 9) raised TypeError: f() missing 1 required positional"
            " argument: 'y'; its schema: aten::asinh(Tensor self) -> Tensor",
        ),
        ("def f(g, x):\n    ...\n", {},
         "aten::asinh (p.py:f, opset 9) returned None; return its results"),
        ("def f(g, x):\n    return x, x\n", {},
         "symbolic for asinh produced an incorrect number of outputs"),
        ("def f(g, x):\n    raise KeyError('no')\n", {},
         "(p.py:f, opset 9) raised KeyError: 'no' (p.py:2)"),
        (GOOD, {"op": "aten::asnih"}, "torch has no operator aten::asnih; did you mean aten::a"),
        (GOOD, {"op": "nobody::knows"},
         "torch has no operator nobody::knows; import the file that defines it"),
    ],
)  # fmt: skip
def test_an_invalid_symbolic(
    project: Project, plugin: str, entry: dict[str, Any], expected: str
) -> None:
    project.write("p.py", plugin)
    message = project.failure(named(**{"opset": 9, **entry}))
    assert expected in message
    assert "\n" not in message


def test_a_fall_through_export_does_not_hide_what_a_symbolic_raises(project: Project) -> None:
    project.write("p.py", "def f(g, x):\n    raise RuntimeError('broken')\n")
    message = project.failure(named(), operator_export_type="onnx_fallthrough")
    assert "raised RuntimeError: broken (p.py:2)" in message


def test_operators_that_fall_through_are_named_as_those_of_pytorch(project: Project) -> None:
    fallen = "is PyTorch's, left untranslated by export.operator_export_type; no backend runs it"
    failure = project.failure(net="Spectrum", operator_export_type="onnx_fallthrough")
    assert f"aten::linalg_eigvalsh {fallen}" in failure
    project.export(net="Bessel", operator_export_type="onnx_aten_fallback")
    resolved = manifest(source={"python": "nets.py:Bessel"})
    job = stage_job("export", resolved, project.build, project.root)
    with pytest.raises(StageError, match=f"aten::special_bessel_j0 {fallen}") as error:
        open_graph(job, project.build / "m/export/model.onnx")
    assert "bundled" not in error.value.hint


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (
            "x = 1\n",
            "p.py registers no symbolic when it is imported; decorate one with"
            " torch.onnx._internal.torchs",
        ),
        (DECORATED.replace("aten::", "onnx::"), "torch has no operator onnx::asinh"),
    ],
)
def test_a_module_that_registers_wrongly(project: Project, plugin: str, expected: str) -> None:
    project.write("p.py", plugin)
    assert expected in project.failure({"module": "p.py"})


def test_one_file_with_the_network_and_its_symbolic(project: Project) -> None:
    project.write("nets.py", DECORATED + NET)
    figures = project.export({"module": "nets.py"}).figures
    assert (project.operators(), figures["warnings"]) == (["Asinh"], [])


def test_a_network_that_registers_a_symbolic_needs_no_entry(project: Project) -> None:
    project.write("nets.py", DECORATED + NET)
    assert project.export().figures["warnings"] == []
    assert project.operators() == ["Asinh"]
