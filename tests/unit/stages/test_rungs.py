"""Which rungs are named, in which order, with which YAML: nothing that the facts do not bear."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from yaml import safe_load

from buildsys.manifest.schema.model import ModelSpec
from buildsys.stages.remedies.remedies import (
    OnnxOperator,
    Rung,
    TorchOperator,
    hint,
    opset_rungs,
    refusal_rungs,
    translation_rungs,
    written_rungs,
)
from buildsys.stages.remedies.shipped_plugins import SHIPPED, files_of

ASINH = TorchOperator("aten::asinh", dynamo_from=18)
CELU = TorchOperator("aten::celu", torchscript_from=12, dynamo_from=18)
OWN = TorchOperator("mine::swish")
FILES = frozenset(name for shipped in SHIPPED for name in shipped.files)
ROOT = Path(__file__).parents[3]


def names(rungs: list[Rung]) -> list[str]:
    return [rung.name for rung in rungs]


def yaml(rungs: list[Rung]) -> list[str]:
    return [line for rung in rungs for line in rung.yaml]


def test_a_higher_opset_is_named_only_where_it_has_the_operator() -> None:
    assert names(translation_rungs(CELU, "torchscript", 11)) == [
        "opset",
        "exporter",
        "registration",
    ]
    assert names(translation_rungs(ASINH, "torchscript", 17)) == ["exporter", "registration"]
    assert names(translation_rungs(OWN, "torchscript", 17)) == ["registration"]
    assert "export: {opset: 12}" in yaml(translation_rungs(CELU, "torchscript", 11))


def test_the_other_exporter_keeps_an_opset_that_is_high_enough() -> None:
    assert (
        yaml(translation_rungs(ASINH, "torchscript", 20))[0]
        == "export: {exporter: dynamo, opset: 20}"
    )
    assert (
        yaml(translation_rungs(ASINH, "torchscript", 9))[0]
        == "export: {exporter: dynamo, opset: 18}"
    )
    traced = TorchOperator("aten::x", torchscript_from=11)
    assert (
        yaml(translation_rungs(traced, "dynamo", 20))[0]
        == "export: {exporter: torchscript, opset: 20}"
    )
    assert names(translation_rungs(traced, "dynamo", 24)) == ["registration"], (
        "torchscript ends at 23"
    )


def test_dynamo_registers_translations_and_torchscript_symbolics() -> None:
    assert yaml(translation_rungs(OWN, "torchscript", 17)) == [
        'symbolics: [{op: "mine::swish", function: "plugins/symbolics/swish.py:swish", opset: 17}]'
    ]
    assert yaml(translation_rungs(OWN, "dynamo", 18)) == [
        'translations: [{op: "mine::swish", function: "plugins/symbolics/swish.py:swish"}]'
    ]


def test_what_is_shipped_is_named_where_the_project_has_the_file_and_takes_the_place_of_writing_one() -> (
    None
):
    assert names(translation_rungs(ASINH, "torchscript", 17, files=FILES)) == [
        "exporter",
        "shipped",
    ]
    assert names(translation_rungs(ASINH, "torchscript", 17, files={"plugins/other.py"})) == [
        "exporter", "registration",
    ]  # fmt: skip


def test_what_is_shipped_is_there() -> None:
    assert all((ROOT / name).is_file() for name in FILES)
    assert files_of(ROOT) == FILES
    assert files_of(ROOT / "docs") == frozenset()


def test_what_is_shipped_comes_with_the_opset_that_it_needs() -> None:
    deform = TorchOperator("torchvision::deform_conv2d", dynamo_from=19)
    rungs = translation_rungs(deform, "torchscript", 17, files=FILES)
    assert names(rungs) == ["exporter", "shipped"]
    assert rungs[1].yaml[0] == "export: {opset: 19}"
    assert "export" not in translation_rungs(deform, "torchscript", 20, files=FILES)[1].yaml[0]
    refused = refusal_rungs(OnnxOperator("", "DeformConv"), "tensorrt_rtx", 20, files=FILES)
    assert names(refused) == ["shipped", "surgery"]
    assert refused[0].yaml[0] == "export: {exporter: torchscript, opset: 20}"
    assert names(refusal_rungs(OnnxOperator("", "DeformConv"), "onnxruntime", 20, files=FILES)) == [
        "surgery"
    ]


def test_a_section_that_is_there_gets_one_more_entry() -> None:
    rungs = translation_rungs(OWN, "torchscript", 17, declared=["symbolics"])
    assert yaml(rungs) == [
        "symbolics:  # beside what is there",
        '  - {op: "mine::swish", function: "plugins/symbolics/swish.py:swish", opset: 17}',
    ]


@pytest.mark.parametrize(
    ("operator", "backend", "expected"),
    [
        (OnnxOperator("", "Asinh"), "onnxruntime", ["surgery"]),
        (OnnxOperator("", "Asinh", taken_from=22), "onnxruntime", ["opset", "surgery"]),
        (OnnxOperator("", "Asinh", taken_from=17), "onnxruntime", ["surgery"]),
        (OnnxOperator("mine", "Swish"), "onnxruntime", ["local function", "library"]),
        (OnnxOperator("mine", "Swish"), "tensorrt_rtx", ["local function", "plugin"]),
    ],
)
def test_what_a_backend_refuses(operator: OnnxOperator, backend: str, expected: list[str]) -> None:
    assert names(refusal_rungs(operator, backend, 17)) == expected


def test_names_of_files_are_words() -> None:
    rungs = refusal_rungs(OnnxOperator("custom_domain", "customOp2"), "tensorrt_rtx", 17)
    assert yaml(rungs) == [
        'ops: [{op: "custom_domain::customOp2", function: "plugins/ops/custom_op2.py:custom_op2"}]',
        'ops: [{op: "custom_domain::customOp2", plugin: {python: "plugins/ops/custom_op2_plugin.py"}}]',
    ]


def test_an_opset_that_lacks_an_operator() -> None:
    assert yaml(opset_rungs("DeformConv", "dynamo", 18, [19, 22])) == ["export: {opset: 19}"]
    assert opset_rungs("DeformConv", "dynamo", 22, [19, 22]) == []
    assert yaml(opset_rungs("New", "torchscript", 17, [25])) == [
        "export: {exporter: dynamo, opset: 25}"
    ]
    assert yaml(written_rungs(18, 17)) == [
        "export: {opset: 18}",
        "export: {exporter: torchscript, opset: 17}",
    ]


def test_a_hint_is_a_numbered_list_per_operator() -> None:
    text = hint(
        [("one", [Rung("opset", "do this", ("a: b",)), Rung("plugin", "do that")]), ("two", [])]
    )
    assert text.splitlines() == [
        "one",
        "1. opset: do this",
        "     a: b",
        "2. plugin: do that",
        "two",
    ]


def all_yaml() -> list[str]:
    found = []
    for declared in ((), ("symbolics", "translations", "ops", "surgery")):
        for exporter in ("torchscript", "dynamo"):
            for operator in (
                ASINH,
                CELU,
                OWN,
                TorchOperator("torchvision::deform_conv2d", dynamo_from=19),
            ):
                for files in (frozenset[str](), FILES):
                    rungs = translation_rungs(
                        operator, exporter, 11, files=files, declared=declared
                    )
                    found += ["\n".join(rung.yaml) for rung in rungs]
        for backend in ("onnxruntime", "tensorrt_rtx"):
            for onnx in (
                OnnxOperator("", "DeformConv", taken_from=19),
                OnnxOperator("mine", "Swish"),
            ):
                rungs = refusal_rungs(onnx, backend, 17, files=FILES, declared=declared)
                found += ["\n".join(rung.yaml) for rung in rungs]
    found += ["\n".join(rung.yaml) for rung in written_rungs(18, 17)]
    found += ["\n".join(shipped.yaml) for shipped in SHIPPED]
    return sorted(set(found))


@pytest.mark.parametrize("text", all_yaml())
def test_the_yaml_of_every_rung_is_taken_by_the_manifest(text: str) -> None:
    added = safe_load(text)
    base = {
        "model": "m",
        "source": {"python": "plugins/models/m.py:M"},
        "inputs": {"x": {"shape": (1, 4)}},
    }
    ModelSpec.model_validate({**base, **added})


def test_names_of_rungs_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "rungs" / "README.md").read_text(encoding="utf-8")
    listed = {
        name.strip()
        for row in re.findall(r"^\| ([a-z, ]+)", page, re.MULTILINE)
        for name in row.split(",")
    }
    assert {
        "opset",
        "exporter",
        "registration",
        "local function",
        "surgery",
        "library",
        "plugin",
    } <= listed
