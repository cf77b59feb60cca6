"""extends, project defaults, matrix, dynamic_axes, engine presets, and origins."""

from pathlib import Path

import pytest
from manifest_files import NET

from buildsys.cli.commands.resolve import resolved_text
from buildsys.errors import ManifestErrors
from buildsys.manifest.layers import merge
from buildsys.manifest.value_tree import plain
from buildsys.manifest.yaml_reader import read_nodes, read_yaml
from buildsys.project.load import change_model


def test_a_manifest_overrides_extends_and_those_override_defaults(project):
    project.write(
        "configs/project.yaml",
        "defaults: {export: {opset: 11, verbose: true}, bench: {min_samples: 7}}",
    )
    project.write(
        "configs/models/_base.yaml",
        "model: base\nexport: {opset: 12, export_params: true}\nbench: {duration: 1s}\n",
    )
    project.model("extends: _base.yaml\nexport: {opset: 13}")
    [model] = project.load().models.values()
    assert model.name == "net"
    assert {name: value for name, value in model.data["export"].items() if value is not None} == {
        "exporter": "torchscript",
        "opset": 13,
        "verbose": True,
        "export_params": True,
    }
    assert (model.data["bench"]["min_samples"], model.data["bench"]["duration"]) == (7, 1.0)
    assert model.origins["export.opset"] == "configs/models/net.yaml:7"
    assert model.origins["export.export_params"] == "configs/models/_base.yaml:2"
    assert model.origins["export.verbose"] == "configs/project.yaml:1"
    assert "export.training" not in model.origins


def test_a_resolved_manifest_names_the_origin_of_each_value(project):
    project.model("export: {opset: 13}\nengines:\n  - ort-cpu\ngates: {latency: 5%}\n")
    model = project.load().models["net"]
    lines = [" ".join(line.split()) for line in resolved_text(model).splitlines()]
    assert lines[0] == "# net, from configs/models/net.yaml"
    for line in (
        "opset: 13 # configs/models/net.yaml:6", "training: null # default",
        'shape: ["batch", 3, 32, 32] # configs/models/net.yaml:4',
        'backend: "onnxruntime" # configs/engines.yaml:1', "limit: null # default",
        "tolerance: 0.05 # configs/models/net.yaml:9",
    ):  # fmt: skip
        assert line in lines
    assert read_yaml(Path("net.yaml"), resolved_text(model).encode()) == model.data


def test_lists_are_replaced_and_a_source_of_another_kind_too(project):
    project.write("net.onnx", b"onnx")
    project.write(
        "configs/models/_base.yaml",
        """\
        source: {torchvision: resnet18, seed: 3, weights: DEFAULT}
        inputs: {x: {shape: [1, 2], data: {random: uniform, high: 2.0}}}
        bench: {cases: [min, opt, max]}
        """,
    )
    project.write(
        "configs/models/a.yaml",
        "model: a\nextends: _base.yaml\nsource: {onnx: net.onnx}\nbench: {cases: [max]}\n"
        "inputs: {x: {shape: [4], data: {constant: 1}}}\n",
    )
    project.write(
        "configs/models/b.yaml", "model: b\nextends: _base.yaml\nsource: {torchvision: vgg11}\n"
    )
    models = project.load().models
    assert models["a"].data["source"] == {"seed": 0, "onnx": "net.onnx", "kwargs": {}}
    assert models["a"].data["inputs"]["x"]["data"] == {"constant": 1}
    assert models["a"].data["inputs"]["x"]["shape"] == [4]
    assert models["a"].data["bench"]["cases"] == ["max"]
    assert models["b"].data["source"] == {
        "seed": 3,
        "torchvision": "vgg11",
        "device": "cpu",
        "weights": "DEFAULT",
        "kwargs": {},
    }


def test_a_matrix_makes_a_model_per_combination(project):
    project.model(
        "matrix: {export.opset: [13, 17], simplify.tool: [onnxsim, none], engines: [[ort-cpu]]}"
    )
    models = project.load().models
    assert list(models) == [
        "net-13-onnxsim-ort-cpu",
        "net-13-none-ort-cpu",
        "net-17-onnxsim-ort-cpu",
        "net-17-none-ort-cpu",
    ]
    assert models["net-17-none-ort-cpu"].data["export"]["opset"] == 17
    assert models["net-17-none-ort-cpu"].data["simplify"]["tool"] == "none"
    assert models["net-17-none-ort-cpu"].origins["export.opset"] == "configs/models/net.yaml:6"


def test_placeholders_in_a_name(project):
    text = NET.replace("model: net", "model: net-op{export.opset}")
    project.write("configs/models/net.yaml", text + "matrix: {export.opset: [13, 17]}\n")
    assert list(project.load().models) == ["net-op13", "net-op17"]
    project.write("configs/models/net.yaml", text)
    [error] = project.errors()
    assert error.startswith(
        "configs/models/net.yaml:1:8: model: the name uses {export.opset}, which is not set"
    )


def test_dynamic_axes_become_names_in_shapes(project):
    project.write(
        "configs/models/net.yaml",
        """\
        model: net
        source: {torchvision: resnet18}
        inputs: {x: {shape: [1, 3, 32, 32]}, y: {shape: [1, 8]}}
        outputs: {z: {shape: [1, 10]}, w: {}}
        dims: {batch: {min: 1, opt: 2, max: 4}, y_dynamic_axes_1: {min: 1, opt: 2, max: 4}}
        dynamic_axes: {x: {0: batch}, y: [-1], z: {0: batch}, w: {0: batch}}
        """,
    )
    data = project.load().models["net"].data
    assert [data["inputs"][name]["shape"] for name in "xy"] == [
        ["batch", 3, 32, 32],
        [1, "y_dynamic_axes_1"],
    ]
    assert [data["outputs"][name]["shape"] for name in "zw"] == [["batch", 10], None]
    assert "dynamic_axes" not in data


def test_data_of_another_kind_replaces_the_whole_map(project):
    project.write("data/a.png", b"")
    project.write(
        "configs/models/_base.yaml",
        "inputs: {x: {data: {random: normal, std: 2}}}\n"
        "calibration: {data: {x: {random: normal, std: 2}}}\n",
    )
    project.model("extends: _base.yaml\ncalibration: {data: {x: {images: data}}}\n")
    file = project.root / "configs/models/net.yaml"
    file.write_text(file.read_text().replace("32]}", "32], data: {images: data}}"))
    data = project.load().models["net"].data
    assert data["inputs"]["x"]["data"]["images"] == "data"
    assert data["calibration"]["data"]["x"]["images"] == "data"


def test_engine_entries_of_every_form(project):
    project.model(
        """\
        verify: {fp16: {rtol: 0.5}}
        engines:
          - ort-cpu
          - {use: ort-fp16, name: small, intra_op_threads: 1, tolerance: {cosine: 0.5}}
          - {name: own, backend: tensorrt_rtx, workspace: 2GiB}
        """
    )
    model = project.load().models["net"]
    first, second, third = model.data["engines"]
    assert (first["name"], first["backend"], first["precision"]) == (
        "ort-cpu",
        "onnxruntime",
        "fp32",
    )
    assert (second["name"], second["precision"], second["intra_op_threads"]) == ("small", "fp16", 1)
    limits = {name: limit for name, limit in second["tolerance"].items() if limit is not None}
    assert limits == {"rtol": 0.5, "cosine": 0.5}
    assert (third["name"], third["workspace"]) == ("own", 2 * 2**30)
    assert model.origins["engines.1.precision"] == "configs/engines.yaml:2"
    assert model.origins["engines.1.name"] == "configs/models/net.yaml:9"


def test_merging_is_associative():
    low, middle, top = (
        read_nodes(Path("m.yaml"), text)
        for text in (b"{a: {x: 1, b: {y: 2}}, c: [1]}", b"{a: {x: 3}, c: {z: 1}}", b"{a: {b: 4}}")
    )
    merged = plain(merge(merge(low, middle), top))
    assert merged == plain(merge(low, merge(middle, top)))
    assert merged == {"a": {"x": 3, "b": 4}, "c": {"z": 1}}


def test_a_change_is_merged_like_an_edit_of_the_file(project):
    project.model("matrix: {export.opset: [13, 14]}\nexport: {verbose: true}")
    loaded = project.load()
    model = loaded.models["net-14"]
    changed = change_model(loaded, model, "export: {exporter: dynamo, opset: 18}")
    expected = {**model.data["export"], "exporter": "dynamo"}  # the matrix has the opset
    assert changed.data == {**model.data, "export": expected}
    assert change_model(loaded, model, "export: {opset: 12}").data == model.data
    for wrong in ("matrix: {export.opset: [20]}", "export: {exporter: none}"):
        with pytest.raises(ManifestErrors):
            change_model(loaded, model, wrong)
    assert loaded.models == project.load().models
