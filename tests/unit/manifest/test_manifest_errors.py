"""Errors found while loading manifests: one line with position and remedy."""

NET = "configs/models/net.yaml"


def test_the_same_name_in_two_files(project):
    project.model()
    project.write("configs/models/sub/other.yaml", (project.root / NET).read_text())
    assert project.errors() == [
        f'configs/models/sub/other.yaml:1:8: model: model "net" is already declared in {NET}; '
        f"rename one of them"
    ]


def test_export_options_of_the_defaults_are_ignored_for_an_onnx_source(project):
    project.write("net.onnx", b"onnx")
    project.write("configs/project.yaml", "defaults: {export: {opset: 18}}")
    project.write(NET, "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\n")
    assert list(project.load().models) == ["net"]


def test_a_broken_base_is_the_only_error(project):
    base = project.write("configs/models/_base.yaml", "source: {torchvision: resnet18\n")
    project.write(
        NET, "extends: _base.yaml\nmodel: net\ninputs: {x: {shape: [batch]}}\nengines: [ort-cpu]\n"
    )
    (error,) = project.errors()
    assert error.startswith("configs/models/_base.yaml:2:1: not valid YAML")
    base.unlink()
    (error,) = project.errors()
    assert error.startswith(f"{NET}:1:10: extends: file _base.yaml does not exist")


def test_all_errors_are_reported_at_once(project):
    project.write("configs/project.yaml", "default: {}\n")
    project.write(
        "configs/engines.yaml", "bad: {backend: onnxruntime, spining: true}\nname-less: 3\n"
    )
    project.model(
        "export: {opset: 99, optmize: true}\nbench: {cases: [mid]}\noutputs: {y: {shape: [n]}}",
        name="b",
    )
    project.write("configs/models/a.yaml", "")
    project.write("configs/models/c.yaml", "model: c\n")
    places = [error.split(": ")[0] for error in project.errors()]
    assert places == [
        "configs/engines.yaml:1:29",
        "configs/engines.yaml:2:12",
        "configs/models/a.yaml:1:1",
        "configs/models/b.yaml:6:17",
        "configs/models/b.yaml:6:21",
        "configs/models/b.yaml:7:17",
        "configs/models/b.yaml:8:23",
        "configs/models/c.yaml:1:1",
        "configs/models/c.yaml:1:1",
        "configs/project.yaml:1:1",
    ]


def test_an_error_names_the_file_of_the_value(project):
    project.write("configs/project.yaml", "defaults:\n  bench: {min_samples: 0}\n")
    project.write("configs/engines.yaml", "e: {backend: onnxruntime,\n  inter_op_threads: 0}\n")
    project.write("configs/common/base.yaml", "export:\n  opset: 3\n")
    project.model("extends: ../common/base.yaml\nengines: [e]", name="a")
    project.model("engines: [e]", name="b")
    assert [error.split(": ")[:2] for error in project.errors()] == [
        ["configs/common/base.yaml:2:10", "export.opset"],
        ["configs/engines.yaml:2:21", "e.inter_op_threads"],
        ["configs/project.yaml:2:24", "defaults.bench.min_samples"],
    ]


def test_a_preset_that_needs_a_section_of_the_model_is_named_in_the_model(project):
    project.write("configs/engines.yaml", "q: {backend: onnxruntime, precision: int8}\n")
    project.write("configs/project.yaml", "defaults: {engines: [q]}\n")
    project.model("engines: [{use: q, spinning: true}]\n", name="own")
    project.model(name="default")
    text = "the int8 engine q needs calibration data, but this model has no section calibration"
    places = [error.partition(f": {text}; add calibration")[0] for error in project.errors()]
    assert sorted(places) == [
        "configs/models/default.yaml:1:8: model",
        "configs/models/own.yaml:6:17: engines.0.use",
    ]


def test_presets_that_use_each_other(project):
    project.write("configs/engines.yaml", "a: {use: b}\nb: {use: a}\nc: {use: d}\n")
    errors = project.errors()
    cycle = "the engine presets a, b use each other; break the cycle"
    assert f"configs/engines.yaml:2:10: b.use: {cycle}" in errors
    assert 'configs/engines.yaml:3:10: c.use: unknown engine preset "d"; presets: a, b, c' in errors


def test_an_engine_with_an_unknown_toolchain(project):
    project.write("configs/project.yaml", "toolchains: {trt86: {python: /opt/trt86/bin/python}}\n")
    project.model("engines: [{backend: onnxruntime, name: a, toolchain: trt68}]\n")
    (error,) = project.errors()
    place = "configs/models/net.yaml:6:54: engines.0.toolchain"
    assert error == f'{place}: unknown toolchain "trt68"; did you mean trt86?'
