"""Errors in calibration and quantization, with their positions."""

from __future__ import annotations

import re

import pytest
from test_manifest_errors import NET

INT8 = "engines: [{backend: onnxruntime, name: e, precision: int8}]"
FP8 = "engines: [{backend: onnxruntime, name: e, precision: fp8}]"
DATA = "data: {x: {random: normal}}"
CASES = [
    (
        INT8,
        "engines.0.precision: an int8 engine needs calibration data, but this model has no "
        "section calibration; "
        "add calibration: {data: {x: {",
    ),
    (
        f"{INT8}\ncalibration: {{}}",
        'calibration: input "x" has no calibration data; add data: {x: {',
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}, algorithm: entropi}}",
        'calibration.algorithm: unknown value "entropi"; did you mean entropy?',
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}, batches: 0}}",
        "calibration.batches: expected at least 1, found 0",
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}, percentile: 99.9}}",
        "calibration.percentile: ignored by algorithm entropy; remove it, or set algorithm: "
        "percentile",
    ),
    (
        f"{INT8}\ncalibration: {{data: {{x: {{random: normal}}, y: {{random: normal}}}}}}",
        'calibration.data.y: unknown input "y"; inputs: x',
    ),
    (
        f"{INT8}\ncalibration: {{data: {{x: {{images: data/none}}}}}}",
        "calibration.data.x.images: folder data/none does not exist; paths are relative to the "
        "project",
    ),
    (
        f"{INT8}\ncalibration: {{data: {{x: {{python: none.py:f}}}}}}",
        "calibration.data.x.python: file none.py does not exist",
    ),
    (
        f"{INT8}\ncalibration: {{data: {{x: {{imges: data}}}}}}",
        "calibration.data.x: expected one of the fields random, npz, python, constant, images; "
        "did you mean images?",
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}, batch_size: 8}}",
        "calibration.batch_size: 8 is outside the range of batch (1 to 4)",
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}}}\nquantize: {{tool: modelopt, per_channel: false}}",
        "quantize.per_channel: not supported by ModelOpt; remove it, or use tool: builtin",
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}, algorithm: percentile}}\nquantize: {{tool: modelopt}}",
        "calibration.algorithm: algorithm percentile is not supported by ModelOpt; use entropy "
        "or minmax",
    ),
    (
        f"{INT8}\ncalibration: {{{DATA}}}\nquantize: {{operators: [Relu]}}",
        'quantize.operators.0: unknown value "Relu"; expected one of: Conv, ConvTranspose, Gemm',
    ),
    (
        "engines: [{backend: tensorrt, name: e, precision: int8, typing: weak}]\n"
        f"calibration: {{{DATA}, algorithm: percentile}}",
        "calibration.algorithm: engine e calibrates with TensorRT: entropy or minmax only",
    ),
    (
        "engines: [{backend: tensorrt, name: e, precision: int8, quantization: implicit}]\n"
        f"calibration: {{{DATA}, algorithm: percentile}}",
        "calibration.algorithm: engine e calibrates with TensorRT: entropy or minmax only; "
        "use one of these, or quantization: explicit for the engine",
    ),
    (
        "convert: {tool: autocast, exclude: [/head]}",
        "convert.exclude: ModelOpt AutoCast chooses the nodes itself; remove it, or use tool:"
        " builtin",
    ),
    (
        "convert: {tool: modelopt}",
        'convert.tool: unknown value "modelopt"; expected one of: builtin, autocast',
    ),
]


@pytest.mark.parametrize(("extra", "sentence"), CASES, ids=[sentence[:50] for _, sentence in CASES])
def test_an_invalid_combination_is_one_line(project, extra, sentence):
    project.model(extra)
    [error] = project.errors()
    assert re.match(rf"{re.escape(NET)}:\d+:\d+: {re.escape(sentence)}", error), error


def test_a_batch_size_needs_a_dimension_to_set(project):
    file = project.model(f"{INT8}\ncalibration: {{{DATA}, batch_size: 2}}")
    file.write_text(
        file.read_text().replace("[batch, 3", "[1, 3").replace("dims: {batch", "# dims: {batch")
    )
    [error] = project.errors()
    assert (
        'batch_size: the first dimension of input "x" has the fixed size 1, so the batch size '
        "cannot be" in error
    )


@pytest.mark.parametrize(
    "fields", ["quantization: explicit, typing: weak", "quantization: explicit", "typing: strong"]
)
def test_explicit_quantizers_support_every_algorithm(project, fields):
    project.model(
        f"engines: [{{backend: tensorrt, name: e, precision: int8, {fields}}}]\n"
        f"calibration: {{{DATA}, algorithm: percentile}}"
    )
    assert project.load().models["net"].data["calibration"]["algorithm"] == "percentile"


def test_a_field_invalid_for_two_engines_is_reported_once(project):
    project.model(
        "engines: [{backend: onnxruntime, name: e, precision: fp8}, {backend: tensorrt_rtx, "
        "name: f, precision: fp8}]\n"
        f"calibration: {{{DATA}}}\nquantize: {{tool: modelopt, per_channel: false}}"
    )
    assert len(project.errors()) == 1


def test_unused_calibration_is_accepted(project):
    project.model(f"calibration: {{{DATA}}}")
    assert project.load().models["net"].data["calibration"]["batches"] == 8
