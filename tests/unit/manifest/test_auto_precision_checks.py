"""Errors in engines with ``precision: auto``, with their positions."""

from __future__ import annotations

import pytest

from buildsys.manifest.backend_choices import base_precision, full_name, is_auto

NET = "configs/models/net.yaml"
ORT = "backend: onnxruntime, precision: "
DATA = "calibration: {data: {x: {random: normal}}}"


@pytest.mark.parametrize(
    ("engine", "sections", "expected"),
    [
        (ORT + "auto", "", "precision: an int8 engine needs calibration"),
        (
            "backend: openvino, precision: auto-fp8",
            DATA,
            "precision: OpenVINO cannot keep single nodes of fp8 engines in fp32; use auto-bf16 or",
        ),
        ("backend: openvino, precision: auto-fp1", "", 'precision: unknown value "auto-fp1"'),
        (
            ORT + "auto-fp16",
            "convert: {tool: autocast}",
            "convert.tool: ModelOpt chooses the nodes itself, so precision: auto has no effect;"
            " use tool: builtin",
        ),
        (
            ORT + "auto-int8",
            f"{DATA}\nquantize: {{tool: modelopt}}",
            "quantize.tool: ModelOpt chooses the nodes itself",
        ),
        (
            "backend: tensorrt, precision: auto, layer_precisions: [{layers: a, precision: fp32}]",
            "",
            "layer_precisions: the search chooses the layers in fp32; remove it, or set precision:"
            " fp16",
        ),
        (
            "backend: tensorrt, precision: auto-int8, quantization: implicit",
            DATA,
            "quantization: a search cannot foresee the ranges",
        ),
        (ORT + "auto-fp16", "search: {trials: 0}", "search.trials: "),
        (ORT + "auto-fp16", "search: {margin: 1.0}", "search.margin: "),
        (ORT + "auto-fp16", "search: {margins: 0}", "search.margins: unk"),
    ],
)  # fmt: skip
def test_an_invalid_engine_is_located(project, engine, sections, expected):
    lines = [
        "model: net",
        "source: {torchvision: resnet18}",
        "inputs: {x: {shape: [batch, 3, 8, 8]}}",
        "dims: {batch: {min: 1, opt: 2, max: 8}}",
        f"engines: [{{name: e, {engine}}}]",
        *sections.splitlines(),
    ]
    project.write(NET, "\n".join([*lines, ""]))
    errors = project.errors()
    assert any(error.startswith(f"{NET}:") and expected in error for error in errors), errors
    assert len(errors) == 1, errors


@pytest.mark.parametrize(
    ("engine", "base", "full"),
    [
        ({"backend": "onnxruntime", "precision": "auto"}, "int8", "auto-int8"),
        ({"backend": "onnxruntime", "provider": "cuda", "precision": "auto"}, "fp16", "auto-fp16"),
        ({"backend": "tensorrt", "precision": "auto"}, "fp16", "auto-fp16"),
        ({"backend": "openvino", "precision": "auto"}, "bf16", "auto-bf16"),
        ({"backend": "openvino", "precision": "auto-int8"}, "int8", "auto-int8"),
        ({"backend": "tensorrt", "precision": "fp16"}, "fp16", "fp16"),
        ({"backend": "tensorrt"}, "fp32", "fp32"),
    ],
)
def test_auto_alone_is_the_first_choice_of_the_backend(engine, base, full):
    assert (base_precision(engine), full_name(engine)) == (base, full)
    assert is_auto(engine) == (base != full)
