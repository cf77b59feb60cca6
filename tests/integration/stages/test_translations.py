"""Translations for the dynamo exporter: kinds and errors."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from stage_jobs import manifest, stage_job

from buildsys.errors import CheckFailed, StageError
from buildsys.stages.export import stage as export
from buildsys.workers.job import StageResult

NET = """\
import torch


@torch.library.custom_op("translated::halve", mutates_args=())
def halve(x: torch.Tensor, by: float = 0.5) -> torch.Tensor:
    return x * by


@halve.register_fake
def _(x, by=0.5):
    return torch.empty_like(x)


@torch.library.custom_op("translated::ends", mutates_args=())
def ends(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.amin(-1), x.amax(-1)


@ends.register_fake
def _(x):
    return x.new_empty(x.shape[:-1]), x.new_empty(x.shape[:-1])


class Halve(torch.nn.Module):
    def forward(self, x):
        return halve(x)


class Ends(torch.nn.Module):
    def forward(self, x):
        return ends(x)


class Asinh(torch.nn.Module):
    def forward(self, x):
        return torch.asinh(x) + 1.0
"""
HEAD = """\
import onnx
import onnxscript
from onnxscript import FLOAT, script
from onnxscript import opset18 as op

own = onnxscript.values.Opset("translated", 1)
T = onnx.defs.OpSchema.FormalParameter
schema = onnx.defs.OpSchema(
    "Halve", "translated", 1, inputs=[T("x", "T")], outputs=[T("y", "T")],
    type_constraints=[("T", ["tensor(float)"], "")],
    attributes=[
        onnx.defs.OpSchema.Attribute("by", onnx.defs.OpSchema.AttrType.FLOAT, required=False)
    ],
)


"""
PLAIN = "def f(x, by=0.5):\n    return op.Mul(x, op.Constant(value_float=by))\n"


class Project:
    """A folder with the network's file and one plugin."""

    def __init__(self, root: Path) -> None:
        self.root, self.build = root / "project", root / "build"
        self.root.mkdir()
        (self.root / "nets.py").write_text(NET)

    def export(
        self, plugin: str, *translations: dict[str, Any], net: str = "Halve", **fields: object
    ) -> StageResult:
        (self.root / "p.py").write_text(HEAD + plugin)
        entries = list(translations) or [{"op": "translated::halve", "function": "p.py:f"}]
        sections: dict[str, Any] = {"source": {"python": f"nets.py:{net}"}}
        resolved = manifest(
            **sections,
            export={"exporter": "dynamo", "opset": 18, **fields},
            translations=entries,
        )
        return export.run(stage_job("export", resolved, self.build, self.root))

    def nodes(self) -> list[tuple[str, str]]:
        model = onnx.load(self.build / "m/export/model.onnx")
        assert not model.functions
        return [(node.domain, node.op_type) for node in model.graph.node]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.parametrize(
    ("plugin", "nodes"),
    [
        (PLAIN, [("", "Mul")]),
        ("@script(default_opset=op)\ndef f(x) -> FLOAT[...]:\n    return own.Halve(x)\n",
         [("translated", "Halve")]),
        ("f = onnxscript.values.Op(own, 'Halve', schema)\n", [("translated", "Halve")]),
    ],
    ids=["function", "script with an own operator", "Op"],
)  # fmt: skip
def test_kinds_of_translations(project: Project, plugin: str, nodes: list[tuple[str, str]]) -> None:
    figures = project.export(plugin).figures
    assert project.nodes() == nodes
    assert figures["outputs"][0]["shape"] == ["batch", 4]
    assert figures["warnings"] == []


def test_an_operator_of_torch_is_translated_by_its_overload(project: Project) -> None:
    plugin = (
        "def asinh(x):\n    return op.Sinh(x)\ndef add(x, y, alpha=1):\n    return op.Sub(x, y)\n"
    )
    asinh, add = (
        {"op": "aten::asinh", "function": "p.py:asinh"},
        {"op": "aten::add.Tensor", "function": "p.py:add"},
    )
    project.export(plugin, asinh, add, net="Asinh")
    assert project.nodes() == [("", "Sinh"), ("", "Sub")]


def test_two_outputs(project: Project) -> None:
    entry = {"op": "translated::ends.default", "function": "p.py:f"}
    plugin = (
        "def f(x):\n"
        "    return op.ReduceMin(x, [-1], keepdims=0), op.ReduceMax(x, [-1], keepdims=0)\n"
    )
    project.export(plugin, entry, net="Ends")
    assert {operator for _, operator in project.nodes()} == {"ReduceMin", "ReduceMax"}


def test_the_exporter_compares_a_translation_if_verify_asks_for_it(project: Project) -> None:
    entry = {"op": "translated::halve", "function": "p.py:f"}
    wrong = "def f(x, by=0.5):\n    return op.Neg(x)\n"
    assert project.export(wrong, entry).status == "passed"  # validate compares it
    with pytest.raises(CheckFailed, match=r"export\.verify: .* has a large .* difference"):
        project.export(wrong, entry, verify=True)


def test_an_unused_translation_is_a_warning(project: Project) -> None:
    halve, ends = (
        {"op": f"translated::{name}", "function": "p.py:f"} for name in ("halve", "ends")
    )
    assert project.export(PLAIN, halve, {**ends, "function": "p.py:op.Relu"}).figures[
        "warnings"
    ] == [
        "translated::ends (p.py:op.Relu) was never used: the network has no such operator, or"
        " torch's own function takes precedence"
    ]


@pytest.mark.parametrize(
    ("plugin", "entry", "expected"),
    [
        ("@script(default_opset=op)\ndef f(x):\n    return op.Relu(x)\n", {},
         "translated::halve (p.py:f) is an onnxscript function without an annotated result; the"
         " exporter "
         "takes it for one without outputs; annotate it: -> FLOAT[...]"),
        ("def f():\n    ...\n", {},
         "raised TypeError: f() takes 0 positional arguments but 1 was given; its schema: tr"),
        (PLAIN, {"op": "translated::halv"},
         "torch has no operator translated::halv; did you mean translated::halve"),
        (PLAIN, {"op": "aten::add.Tenser"},
         "torch has no operator aten::add.Tenser; did you mean aten::add.Tensor"),
    ],
)  # fmt: skip
def test_an_invalid_translation(
    project: Project, plugin: str, entry: dict[str, Any], expected: str
) -> None:
    with pytest.raises(StageError) as error:
        project.export(plugin, {"op": "translated::halve", "function": "p.py:f", **entry})
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
