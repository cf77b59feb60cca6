"""Errors in engines that are built from the program of PyTorch, with their positions."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
SOURCE = "{torchvision: resnet18}"


def write(project, engine: str, source: str = SOURCE, section: str = "") -> None:
    lines = (
        "model: net",
        f"source: {source}",
        "inputs: {x: {shape: [batch, 3, 8, 8]}}",
        "dims: {batch: {min: 1, opt: 2, max: 8}}",
        "engines:",
        f"  - {{name: e, {engine}}}",
        section,
        "",
    )
    project.write(NET, "\n".join(lines))


def errors(project, *manifest: str, **fields: str) -> list[str]:
    write(project, *manifest, **fields)
    return project.errors()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("precision: fp16", "engines.0.precision: ExecuTorch engines are not built in fp16; use"),
        ("per_channel: false", "engines.0.per_channel: has no effect without int8; set precision"),
        (
            "delegate: none, delegated_share: 0.5",
            "engines.0.delegated_share: has no effect with delegate: none; remove it",
        ),
        ("delegate: xnnpak", 'engines.0.delegate: unknown value "xnnpak"; did you mean xnnpack?'),
        ("thread: 2", "engines.0.thread: unknown field; did you mean threads?"),
        ("provider: cpu", "engines.0.provider: unknown field"),
    ],
)
def test_an_invalid_engine_is_located(project, fields, expected):
    found = errors(project, f"backend: executorch, {fields}")
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in found), found


def test_int8_needs_the_delegate_and_calibration_data(project):
    found = errors(project, "backend: executorch, precision: int8, delegate: none")
    assert any("int8 engines of ExecuTorch need XNNPACK" in error for error in found)
    assert any("needs calibration data" in error for error in found)


def test_an_onnx_source_has_no_program(project):
    found = errors(project, "backend: executorch", source="{onnx: net.onnx}")
    assert any(
        error.startswith(f"{NET}:6:") and "an ONNX source has none; use another" in error
        for error in found
    ), found


def test_surgery_does_not_change_the_program(project):
    surgery = "surgery: [{rename: {x: image}}]"
    found = errors(project, "backend: executorch", section=surgery)
    assert any("which surgery on the ONNX graph does not change" in error for error in found), found


@pytest.mark.parametrize("section", ["convert: {exclude: [head]}", "quantize: {outputs: true}"])
def test_a_section_for_graphs_is_refused_without_an_engine_of_one(project, section):
    found = errors(project, "backend: executorch", section=section)
    assert any("no engine of this model is built from it; remove it" in e for e in found), found
    write(project, "backend: onnxruntime", section=section)
    project.load()
