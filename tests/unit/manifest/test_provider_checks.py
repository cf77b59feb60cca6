"""Errors in the execution providers of an ONNX Runtime engine, with their positions."""

from __future__ import annotations

import pytest

from buildsys.backends.onnxruntime.execution_providers import PROVIDERS, wanted_providers
from buildsys.system.backend_registry import describe_backend

NET = "configs/models/net.yaml"
ORT = describe_backend("onnxruntime")


def write(project, providers, more=""):
    project.write(NET, f"""\
        model: net
        source: {{torchvision: resnet18}}
        inputs: {{x: {{shape: [batch, 3, 8, 8]}}}}
        dims: {{batch: {{min: 1, opt: 2, max: 8}}}}
        engines:
          - {{backend: onnxruntime, name: e, providers: {providers}{more}}}
        """)  # fmt: skip


@pytest.mark.parametrize(
    ("providers", "expected"),
    [
        ("[]", "providers: expected a list of providers such as [cuda, cpu]"),
        ("cuda", "providers: expected a list of providers such as [cuda, cpu]"),
        ("[{cuda: {}, cpu: {}}]", "providers: expected a list of providers such as [cuda, cpu]"),
        ("[cuad]", 'providers.0: unknown execution provider "cuad"; did you mean cuda?'),
        ("[{opnvino: {}}]", "providers.0.opnvino: unknown execution provider "),
        ("[cpu, cpu]", "providers.1: cpu is listed twice; remove one of them"),
        ("[cpu, cuda]", "providers.1: no node is left for cuda after cpu; put cpu last"),
        (
            "[{openvino: {num_thread: 2}}]",
            'num_thread: openvino has no option "num_thread"; did you mean num_of_threads?; an'
            " option of another version goes into config: {num_thread: …}",
        ),
        (
            "[{openvino: {num_of_threads: two}}]",
            'num_of_threads: expected an integer, found "two"',
        ),
        ("[{tensorrt: {trt_fp16_enable: 1}}]", "expected true or false, found 1"),
        (
            "[{openvino: {precision: BF16}}]",
            'precision: expected one of FP32, FP16, ACCURACY, found "',
        ),
        ("[{qnn: {backend_type: ir}}]", "backend_type: expected one of htp, gpu, cpu, found "),
        ("[{tensorrt: {trt_engine_cache_enable: true}}]", "trt_engine_cache_enable cannot be set"),
        ("[{cuda: {config: {a: 1}}}]", "config: expected a map of texts by option, found a map"),
    ],
)
def test_a_wrong_provider_is_located(project, providers, expected):
    write(project, providers)
    errors = project.errors()
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in errors), errors


def test_both_fields_contradict_each_other(project):
    write(project, "[openvino]", ", provider: cuda")
    (error,) = project.errors()
    assert "engines.0.provider: has no effect next to providers; remove it" in error


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_provider_and_option_is_accepted(project, name):
    values = {int: "1", bool: "true", str: "text"}
    options = ", ".join(
        f"{option}: {kind[0] if isinstance(kind, tuple) else values[kind]}"
        for option, kind in PROVIDERS[name].options.items()
    )
    write(project, f"[{{{name}: {{{options}}}}}]")
    (model,) = project.load().models.values()
    (engine,) = model.data["engines"]
    (wanted,) = wanted_providers(engine)
    assert wanted.name == name
    assert set(wanted.options) == set(PROVIDERS[name].options)
    assert all(isinstance(value, str) for value in wanted.options.values())


def test_names_of_engine_json_are_known():
    titles = {"provider": "cpu", "providers": ["CUDAExecutionProvider", "CPUExecutionProvider"]}
    assert [wanted.name for wanted in wanted_providers(titles)] == ["cuda", "cpu"]
    assert ORT.runs_on_gpu(titles)
    assert not ORT.runs_on_gpu({"provider": "cpu", "providers": ["CPUExecutionProvider"]})


@pytest.mark.parametrize("providers", [["gpu"], [7], [{}], [{"cuda": 3}], "cuda", {"cuda": {}}])
def test_the_description_accepts_anything(providers):
    assert ORT.runs_on_gpu({"providers": providers}) is (providers == [{"cuda": 3}])


def test_plugins_and_libraries_are_in_the_key():
    options = {"providers": ["openvino", {"tensorrt": {}}, "cpu"]}
    tools = ORT.run_tools(options)
    assert tools[:2] == ("onnxruntime-ep-openvino", "tensorrt")
    assert "nvidia-cudnn-cu12" in tools
    assert ORT.run_tools({"provider": "cpu"}) == ()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("quantization: dynamic", "quantization: has no effect without int8; set precision: int8"),
        ("optimized: true", "optimized: this model has no section optimize; add optimize: {model"),
        (
            "precision: fp16, optimized: true",
            "optimized: not supported with precision: fp16; use fp32, int4, or int8 with",
        ),
        ("precision: int8", "precision: an int8 engine needs calibration data"),
        ("precision: int4, quantization: fast", 'quantization: unknown value "fast"'),
    ],
)
def test_a_wrong_quantization_is_located(project, fields, expected):
    project.write(NET, f"""\
        model: net
        source: {{torchvision: resnet18}}
        inputs: {{x: {{shape: [batch, 3, 8, 8]}}}}
        dims: {{batch: {{min: 1, opt: 2, max: 8}}}}
        engines:
          - {{backend: onnxruntime, name: e, {fields}}}
        """)  # fmt: skip
    errors = project.errors()
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in errors), errors


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_rtx", "openvino"])
def test_int4_needs_onnxruntime(yaml_errors, backend):
    (error,) = yaml_errors(f"""\
model: net
source: {{torchvision: resnet18}}
inputs: {{x: {{shape: [1, 3, 8, 8]}}}}
engines: [{{backend: {backend}, name: e, precision: int4}}]
""")
    assert "engines.0.precision: int4 engines are built with ONNX Runtime only" in error


def test_an_unsupported_block_size_is_refused(yaml_errors):
    (error,) = yaml_errors("""\
model: net
source: {torchvision: resnet18}
inputs: {x: {shape: [1, 3, 8, 8]}}
quantize_weights: {block_size: 24}
engines: [{backend: onnxruntime, name: e, precision: int4}]
""")
    assert "quantize_weights.block_size: unknown value 24; expected one of: 16, 32, 64" in error


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            "ep_context: true",
            "ep_context: not supported by cpu; remove it, or use one of tensorrt, openvino, qnn",
        ),
        ("providers: [cuda, cpu], ep_context: true", "ep_context: not supported by cpu, cuda"),
        ('session_config: {ep.context_enable: "1"}', "ep.context_enable cannot be set here"),
    ],
)
def test_a_context_needs_a_provider_that_writes_it(yaml_errors, fields, expected):
    (error,) = yaml_errors(f"""\
model: net
source: {{torchvision: resnet18}}
inputs: {{x: {{shape: [1, 3, 8, 8]}}}}
engines: [{{backend: onnxruntime, name: e, {fields}}}]
""")
    assert expected in error
