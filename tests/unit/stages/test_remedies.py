"""Remedies: their choice, order and YAML follow from the facts alone."""

import re
from pathlib import Path

import pytest
from yaml import safe_load

from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.project.model import ModelSpec
from buildsys.stages.common.remedies import (
    OnnxOperator,
    Remedy,
    format_remedies,
    function_remedies,
    refusal_remedies,
    registration_remedies,
)

ROOT = Path(__file__).parents[3]


def names(remedies: list[Remedy]) -> list[str]:
    return [remedy.name for remedy in remedies]


def yaml(remedies: list[Remedy]) -> list[str]:
    return [line for remedy in remedies for line in remedy.yaml]


def test_a_quantized_network_is_exported_before_its_quantization() -> None:
    remedies = registration_remedies("quantized::linear_dynamic", "torchscript", 17)
    assert names(remedies) == ["float network", "registration"]


def test_dynamo_registers_translations_and_torchscript_symbolics() -> None:
    assert yaml(registration_remedies("mine::swish", "torchscript", 17)) == [
        'symbolics: [{op: "mine::swish", function: "plugins/symbolics/swish.py:swish", opset: 17}]'
    ]
    assert yaml(registration_remedies("mine::swish", "dynamo", 18)) == [
        'translations: [{op: "mine::swish", function: "plugins/symbolics/swish.py:swish"}]'
    ]


@pytest.mark.parametrize(
    ("operator", "backend", "expected"),
    [
        (OnnxOperator("", "Asinh"), "onnxruntime", ["surgery"]),
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
    assert names(refusal_remedies(operator, backend)) == expected


def test_file_names_are_python_words() -> None:
    remedies = refusal_remedies(OnnxOperator("custom_domain", "customOp2"), "tensorrt_rtx")
    op = 'op: "custom_domain::customOp2"'
    assert yaml(remedies) == [
        f'ops: [{{{op}, function: "plugins/ops/custom_op2.py:custom_op2"}}]',
        f'ops: [{{{op}, plugin: {{python: "plugins/ops/custom_op2_plugin.py"}}}}]',
    ]


def test_a_hint_is_a_numbered_list_per_operator() -> None:
    remedies = [Remedy("opset", "do this", ("a: b",)), Remedy("plugin", "do that")]
    assert format_remedies([("one", remedies), ("two", [])]).splitlines() == [
        "one",
        "1. opset: do this (not tried)",
        "     a: b",
        "2. plugin: do that",
        "two",
    ]


def all_yaml() -> list[str]:
    remedies = function_remedies("F")
    for exporter in ("torchscript", "dynamo"):
        remedies += registration_remedies("mine::swish", exporter, 18)
    for backend in ("onnxruntime", "tensorrt_rtx"):
        remedies += refusal_remedies(OnnxOperator("", "DeformConv"), backend)
        remedies += refusal_remedies(OnnxOperator("mine", "Swish"), backend)
    texts = {line for remedy in remedies if len(remedy.yaml) == 1 for line in remedy.yaml}
    return sorted({*texts, *OTHER_EXPORTS})


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
    expected = {"registration", "local function", "surgery", "library"}
    assert {*expected, "plugin"} <= listed
