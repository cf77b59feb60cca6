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


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("precision: int8", "engines.0.precision: Core ML engines are not built in int8; use fp32"),
        ("precision: bf16", "engines.0.precision: Core ML engines are not built in bf16; use fp32"),
        (
            "compute_units: cpu_and_neural_engine",
            "engines.0.compute_units: the Neural Engine computes in fp16 only; set precision: fp16",
        ),
        ("compute_unit: all", "engines.0.compute_unit: unknown field; did you mean compute_units?"),
        (
            "minimum_deployment_target: iOS61",
            'engines.0.minimum_deployment_target: unknown value "iOS61"; did you mean iOS26?',
        ),
        ("shapes: enumerate", 'engines.0.shapes: unknown value "enumerate"; did you mean enum'),
    ],
)
def test_an_invalid_engine_of_core_ml_is_located(project, fields, expected):
    found = errors(project, f"backend: coreml, {fields}")
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in found), found


@pytest.mark.parametrize(
    ("inputs", "fields", "expected"),
    [
        ("{x: {shape: [1, 2, 3, 4, 5, 6]}}", "", "inputs.x.shape: Core ML takes inputs of up to 5"),
        (
            "{x: {shape: []}}",
            "",
            "inputs.x.shape: Core ML takes no inputs without dimensions; give",
        ),
        ("{x: {shape: [1], dtype: bool}}", "", "inputs.x.dtype: Core ML has no inputs of the type"),
        (
            "{x: {shape: [1], dtype: float16}}",
            "minimum_deployment_target: macOS12",
            "engines.0.minimum_deployment_target: inputs of float16 need iOS16 (macOS13); set min",
        ),
        ("{x: {shape: [1]}}", "shapes: enumerated", "engines.0.shapes: has no effect, as all inp"),
        (
            "{x: {shape: [batch]}, y: {shape: [batch]}}",
            "shapes: enumerated",
            "engines.0.shapes: 2 inputs of enumerated shapes need iOS18 (macOS15); set minimum_dep",
        ),
        ("{x: {shape: [none]}}", "", "dims.none.min: Core ML has no empty tensors; let it begin"),
    ],
)
def test_what_core_ml_cannot_express_is_located(project, inputs, fields, expected):
    dims = "{none: {min: 0, opt: 2, max: 4}}" if "none" in inputs else ""
    dims = "{batch: {min: 1, opt: 2, max: 8}}" if "batch" in inputs else dims
    lines = (
        "model: net",
        f"source: {SOURCE}",
        f"inputs: {inputs}",
        f"dims: {dims or '{}'}",
        f"engines: [{{name: e, backend: coreml, {fields}}}]",
        "",
    )
    project.write(NET, "\n".join(lines))
    found = project.errors()
    assert any(error.startswith(f"{NET}:") and expected in error for error in found), found


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
