"""Errors in OpenVINO engines, with their positions."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("precision: fp8", "engines.0.precision: OpenVINO has no fp8 engines; use fp32, fp16, "),
        (
            "model_type: transformer",
            "engines.0.model_type: has no effect without int8; set precision: int8, or remove it",
        ),
        (
            "config: {INFERENCE_PRECISION_HINT: f16}",
            "engines.0.config.INFERENCE_PRECISION_HINT: INFERENCE_PRECISION_HINT cannot be set"
            " here; use the field precision",
        ),
        ("thread: 2", "engines.0.thread: unknown field; did you mean threads?"),
        ("device: cpu", 'engines.0.device: unknown value "cpu"; did you mean CPU?'),
        ("streams: 0", "engines.0.streams: "),
        ("performance_hint: fast", "engines.0.performance_hint: "),
        ("provider: cpu", "engines.0.provider: unknown field"),
    ],
)
def test_an_invalid_engine_is_located(project, fields, expected):
    project.write(NET, f"""\
        model: net
        source: {{torchvision: resnet18}}
        inputs: {{x: {{shape: [batch, 3, 8, 8]}}}}
        dims: {{batch: {{min: 1, opt: 2, max: 8}}}}
        engines:
          - {{backend: openvino, name: e, {fields}}}
        """)  # fmt: skip
    errors = project.errors()
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in errors), errors
