"""Remedies: their choice, order and YAML follow from the facts alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from yaml import safe_load

from buildsys.project.model import ModelSpec
from buildsys.stages.remedies.remedies import (
    SHIPPED,
    OnnxOperator,
    Remedy,
    TorchOperator,
    format_remedies,
    higher_opset_remedies,
    opset_remedies,
    refusal_remedies,
    shipped_files,
    translation_remedies,
    tried_remedies,
)

ASINH = TorchOperator("aten::asinh", dynamo_from=18)
CELU = TorchOperator("aten::celu", torchscript_from=12, dynamo_from=18)
CUSTOM = TorchOperator("mine::swish")
DEFORM = TorchOperator("torchvision::deform_conv2d", dynamo_from=19)
FILES = frozenset(name for plugin in SHIPPED for name in plugin.files)
ROOT = Path(__file__).parents[3]


def names(remedies: list[Remedy]) -> list[str]:
    return [remedy.name for remedy in remedies]


def yaml(remedies: list[Remedy]) -> list[str]:
    return [line for remedy in remedies for line in remedy.yaml]


def test_a_higher_opset_is_named_only_if_it_has_the_operator() -> None:
    celu = translation_remedies(CELU, "torchscript", 11)
    assert names(celu) == ["opset", "exporter", "registration"]
    assert "export: {opset: 12}" in yaml(celu)
    asinh = translation_remedies(ASINH, "torchscript", 17)
    assert names(asinh) == ["exporter", "registration"]
    assert names(translation_remedies(CUSTOM, "torchscript", 17)) == ["registration"]


def test_remedies_that_fail_when_tried_are_left_out() -> None:
    operator = TorchOperator("aten::x", torchscript_from=18, dynamo_from=18)
    remedies = translation_remedies(operator, "torchscript", 17)
    assert names(remedies) == ["opset", "exporter", "registration"]
    tried = []

    def attempt(changes: Mapping[str, Any]) -> str | None:
        tried.append(changes)
        return "TypeError: no" if "exporter" not in changes else ""

    kept = tried_remedies(remedies, attempt)
    assert tried == [{"opset": 18}, {"exporter": "dynamo", "opset": 18}]
    assert names(kept) == ["exporter", "registration", "tried"]
    assert kept[-1].yaml == ("# export: {opset: 18} (TypeError: no)",)
    assert tried_remedies(remedies, lambda _: None) == remedies


def test_a_quantized_network_is_exported_before_its_quantization() -> None:
    operator = TorchOperator("quantized::linear_dynamic")
    remedies = translation_remedies(operator, "torchscript", 17)
    assert [remedy.name for remedy in remedies] == ["float network", "registration"]


def test_the_other_exporter_keeps_a_sufficient_opset() -> None:
    traced = TorchOperator("aten::x", torchscript_from=11)
    for operator, exporter, opset, expected in (
        (ASINH, "torchscript", 20, "export: {exporter: dynamo, opset: 20}"),
        (ASINH, "torchscript", 9, "export: {exporter: dynamo, opset: 18}"),
        (traced, "dynamo", 20, "export: {exporter: torchscript, opset: 20}"),
    ):
        assert yaml(translation_remedies(operator, exporter, opset))[0] == expected
    beyond = translation_remedies(traced, "dynamo", 24)
    assert names(beyond) == ["registration"], "torchscript ends at 23"


def test_dynamo_registers_translations_and_torchscript_symbolics() -> None:
    assert yaml(translation_remedies(CUSTOM, "torchscript", 17)) == [
        'symbolics: [{op: "mine::swish", function: "plugins/symbolics/swish.py:swish", opset: 17}]'
    ]
    assert yaml(translation_remedies(CUSTOM, "dynamo", 18)) == [
        'translations: [{op: "mine::swish", function: "plugins/symbolics/swish.py:swish"}]'
    ]


@pytest.mark.parametrize(
    ("files", "expected"), [(FILES, "shipped"), ({"plugins/other.py"}, "registration")]
)
def test_a_shipped_plugin_in_the_project_replaces_a_registration(
    files: frozenset[str], expected: str
) -> None:
    remedies = translation_remedies(ASINH, "torchscript", 17, files=files)
    assert names(remedies) == ["exporter", expected]


def test_shipped_files_exist() -> None:
    assert all((ROOT / name).is_file() for name in FILES)
    assert shipped_files(ROOT) == FILES
    assert shipped_files(ROOT / "docs") == frozenset()


def test_a_shipped_plugin_comes_with_its_opset() -> None:
    remedies = translation_remedies(DEFORM, "torchscript", 17, files=FILES)
    assert names(remedies) == ["exporter", "shipped"]
    assert remedies[1].yaml[0] == "export: {opset: 19}"
    sufficient = translation_remedies(DEFORM, "torchscript", 20, files=FILES)
    assert "export" not in sufficient[1].yaml[0]
    refused = refusal_remedies(OnnxOperator("", "DeformConv"), "tensorrt_rtx", 20, files=FILES)
    assert names(refused) == ["shipped", "surgery"]
    assert refused[0].yaml[0] == "export: {exporter: torchscript, opset: 20}"
    refused = refusal_remedies(OnnxOperator("", "DeformConv"), "onnxruntime", 20, files=FILES)
    assert names(refused) == ["surgery"]


def test_an_existing_section_gets_another_entry() -> None:
    remedies = translation_remedies(CUSTOM, "torchscript", 17, declared=["symbolics"])
    assert yaml(remedies) == [
        "symbolics:  # add to the existing entries",
        '  - {op: "mine::swish", function: "plugins/symbolics/swish.py:swish", opset: 17}',
    ]


@pytest.mark.parametrize(
    ("operator", "backend", "expected"),
    [
        (OnnxOperator("", "Asinh"), "onnxruntime", ["surgery"]),
        (OnnxOperator("", "Asinh", supported_from=22), "onnxruntime", ["opset", "surgery"]),
        (OnnxOperator("", "Asinh", supported_from=17), "onnxruntime", ["surgery"]),
        (OnnxOperator("", "Gemm", supported_until=16), "tensorrt", ["opset", "surgery"]),
        (OnnxOperator("", "Gemm", supported_until=17), "tensorrt", ["surgery"]),
        (
            OnnxOperator("mine", "Swish"),
            "onnxruntime",
            ["local function", "library", "bundled plugin"],
        ),
        (OnnxOperator("mine", "Swish"), "tensorrt_rtx", ["local function", "plugin"]),
    ],
)
def test_remedies_for_a_refused_operator(
    operator: OnnxOperator, backend: str, expected: list[str]
) -> None:
    assert names(refusal_remedies(operator, backend, 17)) == expected


def test_file_names_are_python_words() -> None:
    remedies = refusal_remedies(OnnxOperator("custom_domain", "customOp2"), "tensorrt_rtx", 17)
    op = 'op: "custom_domain::customOp2"'
    assert yaml(remedies) == [
        f'ops: [{{{op}, function: "plugins/ops/custom_op2.py:custom_op2"}}]',
        f'ops: [{{{op}, plugin: {{python: "plugins/ops/custom_op2_plugin.py"}}}}]',
    ]


def test_an_opset_without_the_operator() -> None:
    assert yaml(opset_remedies("DeformConv", "dynamo", 18, [19, 22])) == ["export: {opset: 19}"]
    assert opset_remedies("DeformConv", "dynamo", 22, [19, 22]) == []
    newest = opset_remedies("New", "torchscript", 17, [25])
    assert yaml(newest) == ["export: {exporter: dynamo, opset: 25}"]
    assert yaml(higher_opset_remedies(18, 17)) == [
        "export: {opset: 18}",
        "export: {exporter: torchscript, opset: 17}",
    ]


def test_a_hint_is_a_numbered_list_per_operator() -> None:
    remedies = [Remedy("opset", "do this", ("a: b",)), Remedy("plugin", "do that")]
    assert format_remedies([("one", remedies), ("two", [])]).splitlines() == [
        "one",
        "1. opset: do this",
        "     a: b",
        "2. plugin: do that",
        "two",
    ]


def all_yaml() -> list[str]:
    found = list(higher_opset_remedies(18, 17))
    for declared in ((), ("symbolics", "translations", "ops", "surgery")):
        for exporter in ("torchscript", "dynamo"):
            for operator in (ASINH, CELU, CUSTOM, DEFORM):
                for files in (frozenset[str](), FILES):
                    found += translation_remedies(
                        operator, exporter, 11, files=files, declared=declared
                    )
        for backend in ("onnxruntime", "tensorrt_rtx"):
            for refused in (
                OnnxOperator("", "DeformConv", supported_from=19),
                OnnxOperator("mine", "Swish"),
            ):
                found += refusal_remedies(refused, backend, 17, files=FILES, declared=declared)
    return sorted({"\n".join(one.yaml) for one in (*found, *SHIPPED)})


@pytest.mark.parametrize("text", all_yaml())
def test_the_manifest_accepts_the_yaml_of_every_remedy(text: str) -> None:
    base = {
        "model": "m",
        "source": {"python": "plugins/models/m.py:M"},
        "inputs": {"x": {"shape": (1, 4)}},
    }
    ModelSpec.model_validate({**base, **safe_load(text)})


def test_remedies_have_the_names_in_the_documentation() -> None:
    page = (ROOT / "docs" / "remedies" / "README.md").read_text(encoding="utf-8")
    listed = {
        name.strip()
        for row in re.findall(r"^\| ([a-z, ]+)", page, re.MULTILINE)
        for name in row.split(",")
    }
    expected = {"opset", "exporter", "registration", "local function", "surgery", "library"}
    assert {*expected, "plugin"} <= listed
