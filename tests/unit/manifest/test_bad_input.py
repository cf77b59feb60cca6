"""Every bad input that can be found when manifests are loaded: one line with file, line, column and the way out."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

NET = "configs/models/net.yaml"

FIELDS = [
    # further lines (the first is line 6), the error after the file's name
    ("exprot: {opset: 17}", "6:1: exprot: unknown field; did you mean export?"),
    (
        "export: {opset_version: 17}",
        "6:10: export.opset_version: unknown field; did you mean opset?",
    ),
    (
        "export: {opset: 99}",
        "6:17: export.opset: 99 is not an opset the torchscript exporter can write (6 to 23)",
    ),
    (
        "export: {opset: 5}",
        "6:17: export.opset: 5 is not an opset the torchscript exporter can write (6 to 23)",
    ),
    (
        "export: {exporter: dynamo, opset: 99}",
        "6:35: export.opset: 99 is not an opset the dynamo exporter can write (7 to 28)",
    ),
    ('export: {opset: "17"}', '6:17: export.opset: found "17"; a whole number is wanted'),
    (
        "export: {exporter: dynamic}",
        '6:20: export.exporter: "dynamic" is not allowed here; did you mean dynamo?',
    ),
    (
        "export: {exporter: dynamo, opset: 18, do_constant_folding: false}",
        "6:39: export.do_constant_folding: the dynamo exporter ignores it; use optimize: false",
    ),
    (
        "export: {external_data: true}",
        "6:10: export.external_data: the torchscript exporter ignores it; it decides by size",
    ),
    (
        "simplify: {tool: none, fuse: false}",
        "6:24: simplify.fuse: no tool simplifies the graph, so that it has no effect; remove it or choose a tool",
    ),
    (
        "simplify: {tool: none, tensor_size_threshold: 1MiB}",
        "6:24: simplify.tensor_size_threshold: no tool simplifies",
    ),
    (
        "export: {exporter: dynamo, export_params: false}",
        "6:43: export.export_params: the dynamo exporter writes an invalid file without the parameters; "
        "set keep_initializers_as_inputs: true as well",
    ),
    (
        "engines: [ort-cup]",
        '6:11: engines.0: no engine profile is named "ort-cup"; did you mean ort-cpu?',
    ),
    (
        "engines: [{use: rtx}]",
        '6:17: engines.0.use: no engine profile is named "rtx"; profiles: ort-cpu, ort-fp16, rtx-fp16',
    ),
    ("engines: [ort-cpu, ort-cpu]", None),
    ("engines: ort-cpu", '6:10: engines: found "ort-cpu"; a list is wanted'),
    (
        "engines: [3]",
        "6:11: engines.0: found 3; the name of a profile or a map of engine fields is wanted",
    ),
    (
        "engines: [{name: x}]",
        "6:11: engines.0: the engine names no backend; one of: onnxruntime, tensorrt, tensorrt_rtx; or use: PROFILE",
    ),
    (
        "engines: [{name: x, backend: onnxruntim}]",
        '6:30: engines.0.backend: no backend is named "onnxruntim"; did you mean onnxruntime?',
    ),
    ("engines: [{backend: onnxruntime}]", "6:11: engines.0.name: the field is missing"),
    ("engines: [{use: ort-cpu, intra_op_thread: 2}]", None),
    (
        "outputs: {y: {shape: [bacth, 10]}}",
        "6:23: outputs.y.shape.0: the dimension bacth is not declared in dims; did you mean batch?",
    ),
    ("outputs: {x: {}}", "6:11: outputs.x: an input has this name already"),
    ("bench: {cases: [mid]}", None),
    ("bench: {cases: []}", "6:16: bench.cases: found an empty list; at least 1 entries are wanted"),
    ("bench: {cases: [opt, opt]}", '6:22: bench.cases.1: the case "opt" is given twice'),
    (
        "bench: {baselines: [torch, torch]}",
        '6:28: bench.baselines.1: the baseline "torch" is given twice',
    ),
    (
        "bench: {baselines: [torh]}",
        '6:21: bench.baselines.0: "torh" is not allowed here; did you mean torch?',
    ),
    (
        "bench: {cuda_graph: yes}",
        '6:21: bench.cuda_graph: found "yes"; true, false or a list of both is wanted',
    ),
    (
        "bench: {cuda_graph: []}",
        "6:21: bench.cuda_graph: found an empty list; true, false or a list of both is wanted",
    ),
    ("bench: {in_flight: 0}", "6:20: bench.in_flight: 0 is out of range; at least 1 is wanted"),
    ("bench: {transfers: host}", '6:20: bench.transfers: "host" is not allowed here'),
    ("bench: {wait: sleep}", '6:15: bench.wait: "sleep" is not allowed here'),
    (
        "engines: [ort-cpu]\nbench: {cuda_graph: [false, true]}",
        "7:9: bench.cuda_graph: the backend onnxruntime on a CPU cannot honour it: it is for engines of TensorRT; "
        "remove it, or add such an engine",
    ),
    (
        "engines: [{backend: onnxruntime, name: e, provider: cuda}]\nbench: {in_flight: 2}",
        "7:9: bench.in_flight: the backend onnxruntime on a GPU cannot honour it",
    ),
    (
        "engines: [ort-cpu]\nbench: {baselines: [torch, torch_cuda_graph]}",
        "7:28: bench.baselines.1: torch_cuda_graph runs on a GPU, and no engine of this model does; remove it",
    ),
    (
        "bench: {duration: 3 parsecs}",
        "6:19: bench.duration: '3 parsecs' is not a duration such as 3s, 200ms or 2min",
    ),
    ("validate: {rtol: -1}", "6:18: validate.rtol: -1 is out of range; at least 0 is wanted"),
    ("validate: {rtol: .nan}", "6:18: validate.rtol: found nan; a finite number is wanted"),
    (
        "timeout: {exprot: 3s}",
        '6:11: timeout.exprot: "exprot" is not allowed here; did you mean export?',
    ),
    ("verify: [min]", "6:9: verify: found a list; a map is wanted"),
    ("dynamic_axes: {y: {0: batch}}", "6:16: dynamic_axes.y: no input or output is named y"),
    (
        "dynamic_axes: {x: {4: batch}}",
        "6:20: dynamic_axes.x.4: axis 4 is outside the shape of x, which has 4 dimensions",
    ),
    ("dynamic_axes: {x: {2: height}}", None),
    (
        "matrix: {export.opset: 17}",
        "6:24: matrix.export.opset: found 17; a list of values is wanted",
    ),
    ("matrix: {export.opset: [17, 99]}", None),
    ("matrix: {model: [a, b]}", "6:10: matrix.model: a matrix cannot vary model"),
    ("matrix: {export.opset: [17, 17]}", None),
    (
        "extends: common.yaml",
        "6:10: extends: no file common.yaml beside net.yaml; paths are relative to this file",
    ),
    ("extends: ../..", '6:10: extends: "../.." is a folder; the path of a manifest is wanted'),
    ("extends: ../../../x.yaml", '6:10: extends: "../../../x.yaml" leaves the project'),
    ("extends: net.yaml", "6:10: extends: the manifest extends itself: net.yaml → net.yaml"),
]


@pytest.mark.parametrize(("extra", "expected"), FIELDS, ids=[extra for extra, _ in FIELDS])
def test_a_wrong_field_is_one_line(project, extra, expected):
    project.model(extra)
    [error] = project.errors()
    assert error.startswith(f"{NET}:")
    if expected is not None:
        assert error.startswith(f"{NET}:{expected}")


def test_the_remaining_sentences(project):
    project.model("engines: [ort-cpu, ort-cpu]")
    [error] = project.errors()
    assert error.startswith(f'{NET}:6:20: engines.1: two engines of this model are named "ort-cpu"')
    project.model("engines: [{use: ort-cpu, intra_op_thread: 2}]")
    assert project.errors() == [
        f"{NET}:6:26: engines.0.intra_op_thread: unknown field; did you mean intra_op_threads?"
    ]
    project.model("bench: {cases: [mid]}")
    assert project.errors() == [
        f'{NET}:6:17: bench.cases.0: "mid" is not allowed here; did you mean min?'
    ]
    project.model("dynamic_axes: {x: {2: height}}")
    [error] = project.errors()
    assert error.startswith(
        f"{NET}:6:23: dynamic_axes.x.2: the dimension height is not declared in dims"
    )
    project.model("matrix: {export.opset: [17, 99]}")
    [error] = project.errors()
    assert error.startswith(f"{NET}:6:29: matrix.export.opset.1: 99 is not an opset")
    project.model("matrix: {export.opset: [17, 17]}")
    [error] = project.errors()
    assert 'two combinations are both named "net-17"' in error


INPUTS = [
    (
        "{shape: [n, 3]}",
        "inputs.x.shape.0: the dimension n is not declared in dims; add dims: {n: {min: …, opt: …, max: …}}",
    ),
    (
        "{shape: [-1, 3]}",
        "inputs.x.shape.0: found -1; a whole number from 0 or the name of a dimension is wanted",
    ),
    ("{shape: 3}", "inputs.x.shape: found 3; a list is wanted"),
    ("{dtype: float32}", "inputs.x.shape: the field is missing"),
    (
        "{shape: [3], dtype: flaot32}",
        'inputs.x.dtype: "flaot32" is not allowed here; did you mean float32?',
    ),
    (
        "{shape: [3], dtype: string}",
        "inputs.x: random values of dtype string cannot be made; give data: constant, npz or python",
    ),
    (
        "{shape: [3], dtype: int4, data: {random: normal}}",
        "inputs.x.data.random: random normal values cannot be made for dtype int4; use random: integers",
    ),
    (
        "{shape: [3], dtype: int4, data: {random: integers, high: 10}}",
        "inputs.x.data.high: 10 is outside the range of int4 (-8 to 7); high is exclusive",
    ),
    (
        "{shape: [3], data: {random: uniform, low: 2}}",
        "inputs.x.data.low: high 1 is not above low 2",
    ),
    (
        "{shape: [3], data: {random: normal, high: 2}}",
        "inputs.x.data.high: ignored with random: normal; remove it",
    ),
    (
        "{shape: [3], dtype: int8, data: {constant: 200}}",
        "inputs.x.data.constant: 200 is not a value of dtype int8",
    ),
    (
        "{shape: [3], data: {constant: hello}}",
        "inputs.x.data.constant: the constant is text, and the input has dtype float32",
    ),
    (
        "{shape: [3], data: {rnadom: normal}}",
        "inputs.x.data: the data has none of the fields random, npz, python, constant, images; did you mean random?",
    ),
    ("{shape: [3], keyword: 3x}", 'inputs.x.keyword: "3x" is not a word of letters, digits and _'),
    ("{shape: [3], data: {npz: plugins/x.npz}}", "inputs.x.data.npz: no file plugins/x.npz"),
]


@pytest.mark.parametrize(("tensor", "expected"), INPUTS, ids=[tensor for tensor, _ in INPUTS])
def test_a_wrong_input_is_one_line(project, tensor, expected):
    project.write(NET, f"model: net\nsource: {{torchvision: resnet18}}\ninputs:\n  x: {tensor}\n")
    [error] = project.errors()
    assert error.startswith(f"{NET}:4:")
    assert f": {expected}" in error


def test_a_second_input_with_the_same_keyword(project):
    project.write(
        NET,
        """\
        model: net
        source: {torchvision: resnet18}
        inputs:
          a: {shape: [3], keyword: image}
          b: {shape: [3], keyword: image}
        """,
    )
    assert project.errors() == [
        f'{NET}:5:28: inputs.b.keyword: the input a has the keyword "image" already'
    ]


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ("{n: {min: 4, opt: 2, max: 8}}", "dims.n: min 4, opt 2, max 8 are not in ascending order"),
        ("{n: {min: 1, opt: 9, max: 8}}", "dims.n: min 1, opt 9, max 8 are not in ascending order"),
        ("{n: {min: 1, opt: 2, max: 8, odd: 9}}", "dims.n: odd 9 is outside the range 1 to 8"),
        ("{n: {min: 1, opt: 2}}", "dims.n.max: the field is missing"),
        (
            "{n: {min: 1, opt: 2, max: 4}, m: {min: 1, opt: 2, max: 4}}",
            "dims.m: the shape of no input uses this dimension; remove it",
        ),
        ("[n]", "dims: found a list; a map is wanted"),
    ],
)
def test_wrong_dims(project, dims, expected):
    project.write(
        NET,
        f"model: net\nsource: {{torchvision: resnet18}}\ninputs: {{x: {{shape: [n]}}}}\ndims: {dims}\n",
    )
    errors = project.errors()
    assert any(error.startswith(f"{NET}:4:") and error.endswith(expected) for error in errors), (
        errors
    )


@pytest.mark.parametrize(
    "name", ["a/b", "two words", "../up", "", ".hidden", "a:b", "naïve", "x" * 101]
)
def test_a_model_name_that_is_no_path_and_no_target(project, name):
    project.write(
        NET, f'model: "{name}"\nsource: {{torchvision: r}}\ninputs: {{x: {{shape: [1]}}}}\n'
    )
    [error] = project.errors()
    assert error.startswith(f"{NET}:1:8: model: ")


def test_the_same_name_in_two_files(project):
    project.model()
    project.write("configs/models/sub/other.yaml", (project.root / NET).read_text())
    assert project.errors() == [
        f'configs/models/sub/other.yaml:1:8: model: the model "net" is in {NET} already; rename one of them'
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("model: net\ninputs:\n\tx: {}\n", "3:1: a tab cannot indent YAML; use spaces"),
        (
            "model: net\n  inputs: 3\n",
            "2:9: not valid YAML: mapping values are not allowed in this context",
        ),
        ("", "1:1: the file is empty"),
        ("# only a comment\n", "1:1: the file is empty"),
        ("- model: net\n", "1:1: found a list; a manifest is a map of fields"),
        ("just text\n", '1:1: found "just text"; a manifest is a map of fields'),
        ("model: net\nmodel: net\n", "2:1: model: the key is given twice; keep one of them"),
        (
            b"model: net\ndescription: caf\xe9\n",
            "2:17: byte 0xe9 at offset 27 is not UTF-8; save the file as UTF-8",
        ),
        ("model: net\nsource: [torchvision]\n", None),
        (b"x" * 10_000_000, "the file has 9.5 MiB, a manifest at most 1 MiB"),
    ],
    ids=[
        "tab",
        "indent",
        "empty",
        "comment",
        "list",
        "text",
        "twice",
        "bytes",
        "list-for-map",
        "10-MB",
    ],
)
def test_a_broken_file(yaml_errors, content, expected):
    errors = yaml_errors(content)
    assert errors[0].startswith(NET)
    if expected is None:
        assert f"{NET}:2:9: source: found a list; a map is wanted" in errors
    else:
        assert len(errors) == 1
        assert expected in errors[0]


def test_a_billion_laughs_ends_at_once(yaml_errors):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 30)]
    started = time.perf_counter()
    [error] = yaml_errors("\n".join(lines))
    assert time.perf_counter() - started < 1
    assert "the aliases expand to more than 50000 values" in error


def test_export_options_of_an_onnx_source(project):
    project.write("net.onnx", b"onnx")
    project.write(
        NET,
        "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\nexport: {opset: 99}\n",
    )
    assert project.errors() == [
        f"{NET}:4:10: export.opset: ignored for an onnx source, which is not exported; remove it"
    ]
    project.write("configs/project.yaml", "defaults: {export: {opset: 18}}")
    project.write(NET, "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\n")
    assert list(project.load().models) == ["net"]


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("{y: {min: [1], opt: [1], max: [1]}}", "no input is named y"),
        ("{x: {min: [1], opt: [1], max: [1]}}", "1 sizes, and the input has 4 dimensions"),
        (
            "{x: {min: [4,3,32,32], opt: [2,3,32,32], max: [8,3,32,32]}}",
            "min 4, opt 2, max 8 of axis 0 are not in ascending",
        ),
        (
            "{x: {min: [1,3,32,32], opt: [1,3,32,32], max: [1,3,64,32]}}",
            "axis 2 is 32 to 64, and the input's shape has 32",
        ),
        ("{}", "the input x has dynamic dimensions and no range in this profile"),
        (
            "{x: {min: [1,3,32,32], opt: [2,3,32,32], max: [64,3,32,32]}}",
            "profiles.0.x.max: axis 0 (batch) is 64, and dims.batch is 1 to 4; outputs are known",
        ),
        (
            "{x: {min: [0,3,32,32], opt: [2,3,32,32], max: [4,3,32,32]}}",
            "profiles.0.x.min: axis 0 (batch) is 0, and dims.batch is 1 to 4",
        ),
        (
            "{X: {min: [1,3,32,32], opt: [2,3,32,32], max: [4,3,32,32]}}",
            "no input is named X; did you mean x?",
        ),
    ],
)
def test_wrong_optimization_profiles(project, profile, expected):
    project.model(f"engines: [{{use: rtx-fp16, profiles: [{profile}]}}]")
    errors = project.errors()
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in errors), errors


def test_a_profile_keeps_the_steps_of_a_dimension_and_one_size_for_each(project):
    manifest = """\
        model: net
        source: {torchvision: resnet18}
        inputs: {x: {shape: [n, n]}, y: {shape: [n]}}
        dims: {n: {min: 4, opt: 8, max: 16, multiple_of: 4}}
        engines:
          - use: rtx-fp16
            profiles:
              - {x: {min: [4, 4], opt: [10, 10], max: [16, 12]}, y: {min: [4], opt: [8], max: [16]}}
        """
    project.write(NET, manifest)
    assert project.errors() == [
        f"{NET}:8:32: engines.0.profiles.0.x.opt: axis {axis} (n) is 10, and dims.n.multiple_of is 4; nearest: 8 or 12"
        for axis in (0, 1)
    ]
    project.write(NET, manifest.replace("[10, 10]", "[8, 8]"))
    assert project.errors() == [
        f"{NET}:8:45: engines.0.profiles.0.x.max: axis 1 (n) is 12, and axis 0 of x, which is n as well, is 16; "
        "give both the same size, or two names in dims"
    ]
    project.write(NET, manifest.replace("[10, 10]", "[8, 8]").replace("[16, 12]", "[12, 12]"))
    (error,) = project.errors()
    assert "profiles.0.y.max: axis 0 (n) is 16, and axis 0 of x, which is n as well, is 12" in error


def test_everything_wrong_is_found_in_one_pass(project):
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


def test_an_error_names_the_file_that_set_the_value(project):
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


def test_a_broken_shared_file_is_reported_once(project):
    project.write("configs/engines.yaml", "ort-cpu: [\n")
    project.model("engines: [ort-cpu]", name="a")
    project.model("engines: [ort-cpu]", name="b")
    [error] = project.errors()
    assert error.startswith("configs/engines.yaml:2:1: not valid YAML")


def test_profiles_that_use_each_other(project):
    project.write("configs/engines.yaml", "a: {use: b}\nb: {use: a}\nc: {use: d}\n")
    errors = project.errors()
    assert "configs/engines.yaml:2:10: b.use: the profile uses itself: a → b → a" in errors
    assert (
        'configs/engines.yaml:3:10: c.use: no engine profile is named "d"; profiles: a, b, c'
        in errors
    )


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling"])
def test_a_manifest_that_is_no_file(project, kind):
    path = project.root / "configs/models/odd.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to(Path("nowhere.yaml"))
    else:
        path.mkdir()
        assert not project.load().models
        return
    [error] = project.errors()
    assert error.startswith("configs/models/odd.yaml: ")


def test_a_project_without_models_folder(project):
    (project.root / "configs/models/.keep").unlink()
    (project.root / "configs/models").rmdir()
    assert project.errors() == [
        "configs/models: the folder cannot be read: no such file or directory; put one YAML file per model there"
    ]
