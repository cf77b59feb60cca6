"""Manifests that are accepted, and what they resolve to."""

import pytest

from buildsys.manifest.backend_choices import base_precision, full_name, is_auto
from buildsys.project.plan import ProjectPlan

NET = "configs/models/net.yaml"
SYMBOLIC = '{op: "aten::asinh", function: "plugins/s.py:f", opset: 9}'


@pytest.mark.parametrize(
    "section",
    [
        f"export: {{opset: 8}}\nsymbolics: [{SYMBOLIC}]",  # such exports use later symbolics
        f"symbolics: [{SYMBOLIC}, {SYMBOLIC.replace('9', '12')}]",
        "surgery: [{rename: {whatever: z}}]",  # undeclared outputs are not checked
    ],
)
def test_a_section_is_accepted(project, section):
    project.write("plugins/s.py", "def f(g, x): ...\n")
    project.model(section)
    assert list(project.load().models) == ["net"]


COMMIT = "0123456789" * 4
MANIFEST = "model: net\nsource: {{{source}}}\ninputs: {{x: {{shape: [1]}}}}\n"


@pytest.mark.parametrize(
    "source",
    [
        f'timm: resnet18, weights: {{file: "hf://timm/resnet18.a1_in1k@{COMMIT}/model.pth"}}',
        f'transformers: AutoModel, checkpoint: "hf://a/b@{COMMIT}"',
    ],
)
def test_a_commit_of_the_hub_is_accepted(project, source):
    project.write(NET, MANIFEST.format(source=source))
    assert project.load().models["net"].data["source"]


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


def test_right_gates_are_read_in_si_units(project):
    project.model(
        "engines: [{name: a, backend: onnxruntime}, {name: b, backend: onnxruntime}]\n"
        "gates: {engine: a, latency: {tolerance: 5%, limit: 2ms}, size: {limit: 50MB}}\n"
    )
    gates = project.load().models["net"].data["gates"]
    assert gates["latency"] == {"tolerance": 0.05, "limit": 0.002}
    assert gates["size"] == {"tolerance": None, "limit": 50_000_000}


GATES = [  # in short, and spelled out
    ("latency: 5%", "latency: {tolerance: 5%}"),
    ("throughput: 500", "throughput: {limit: 500}"),
    ("size: 50MB", "size: {limit: 50MB}"),
    ("build_time: 1 min", "build_time: {limit: 1min}"),
    ("error: 1e-3", "error: {limit: 0.001}"),
    ("error: 10 %", "error: {tolerance: 0.1}"),
    ("accuracy: 0.5%", "accuracy: {drop: 0.5%}"),
    ("accuracy: 0.005", "accuracy: {drop: 0.5%}"),
]


@pytest.mark.parametrize(("short", "spelled_out"), GATES)
def test_a_gate_in_short_is_the_gate_spelled_out(project, short, spelled_out):
    read = []
    project.write("a.npz", "")
    for gate in (short, spelled_out):
        project.model(f"gates: {{{gate}}}\nevaluate: {{metric: top1, data: {{npz: a.npz}}}}\n")
        read.append(project.load().models["net"].data["gates"])
    assert read[0] == read[1]
    name = short.partition(":")[0]
    assert any(value is not None for value in read[0][name].values())


def test_only_dimensions_of_inputs_and_surgery_are_kept(project):
    project.model("surgery: [{cut: {inputs: {feat: {shape: [batch, 8, half]}}}}]\n")
    file = project.root / NET
    more = "max: 4}, half: {min: 8, opt: 8, max: 16}, other: {min: 1, opt: 1, max: 1}}"
    file.write_text(file.read_text().replace("max: 4}}", more))
    assert set(project.load().models["net"].data["dims"]) == {"batch", "half"}


FIRST = "{name: first, run: make, outputs: {model: model/}}"


def write(project, *commands: str, more: str = "") -> None:
    lines = "".join(f"  - {command}\n" for command in commands)
    project.write(NET, f"model: net\ncommands:\n{lines}{more}")


SHARED = """\
inputs: {x: {shape: [batch, 4]}}
outputs: {y: {shape: [batch, 2]}}
dims: {batch: {min: 1, opt: 2, max: 8}}
dynamic_axes: {z: {0: batch}}
ops: [{op: "my::op", functions: plugins/no.py:make}]
surgery: [{rename: {x: z}}]
calibration: {batches: 2, data: {x: {random: normal}}}
export: {opset: 17}
engines: [ort-cpu, {use: rtx-fp16, precision: fp8}, unheard-of]
verify: {cases: [min]}
bench: {duration: 1s}
gates: {latency: 5%}
"""


@pytest.mark.parametrize("how", ["defaults", "extends"])
def test_shared_sections_of_networks_do_not_matter_to_commands(project, how):
    write(project, FIRST)
    alone = project.load().models["net"].data
    if how == "defaults":
        shared = "".join(f"  {line}\n" for line in SHARED.splitlines())
        project.write("configs/project.yaml", f"defaults:\n{shared}")
    else:
        project.write("configs/shared.yaml", SHARED)
        write(project, FIRST, more="extends: ../shared.yaml\n")
    loaded = project.load()
    assert loaded.models["net"].data == alone
    assert list(ProjectPlan(loaded.models)) == ["command:net:first", "report:net"]


def test_a_command_cannot_read_an_engine_of_the_defaults(project):
    project.write("configs/project.yaml", "defaults: {engines: [ort-cpu]}")
    write(project, "{name: a, run: x, outputs: {m: m}, inputs: {i: '{engines.ort-cpu}'}}")
    (error,) = project.errors()
    assert "there is no {engines.ort-cpu}" in error


@pytest.mark.parametrize(
    "source",
    [
        "def make(): ...",
        "class make: ...",
        "make = print",
        "from json import loads as make",
        "from json import *",
        "if True:\n    make = 1",
        "try:\n    import make\nexcept ImportError:\n    make = None",
        "def __getattr__(name): ...",
        "first, make = 1, 2",
    ],
)
def test_every_form_of_definition_is_found(project, source):
    project.write("plugins/net.py", source)
    project.write(NET, MANIFEST.format(source="python: plugins/net.py:make"))
    assert list(project.load().models) == ["net"]


def test_a_model_has_the_toolchains_of_its_engines(project):
    declared = "{trt86: {python: /opt/trt86/bin/python, env: {LD_LIBRARY_PATH: /opt/lib}}}"
    defaults = "defaults: {engines: [{backend: onnxruntime, name: a}]}"
    project.write("configs/project.yaml", f"toolchains: {declared}\n{defaults}\n")
    project.model("engines: [{use: ort-cpu, toolchain: trt86}, {use: ort-cpu, name: b}]\n")
    project.model(name="plain")
    models = project.load().models
    written = {"trt86": {"python": "/opt/trt86/bin/python", "env": {"LD_LIBRARY_PATH": "/opt/lib"}}}
    assert models["net"].data["toolchains"] == written
    assert models["net"].origins["toolchains.trt86.python"] == "configs/project.yaml:1"
    assert "toolchains" not in models["plain"].data
    assert [engine["toolchain"] for engine in models["net"].data["engines"]] == ["trt86", None]
