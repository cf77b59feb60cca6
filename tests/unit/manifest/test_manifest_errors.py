"""Errors found while loading manifests: one line with position and remedy."""

from __future__ import annotations

import pytest
from manifest_files import NET as MANIFEST

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
        "6:17: export.opset: opset 99 is not supported by the torchscript exporter (6 to 23)",
    ),
    (
        "export: {opset: 5}",
        "6:17: export.opset: opset 5 is not supported by the torchscript exporter (6 to 23)",
    ),
    (
        "export: {exporter: dynamo, opset: 99}",
        "6:35: export.opset: opset 99 is not supported by the dynamo exporter (7 to 28)",
    ),
    ("export: {opset: true}", "6:17: export.opset: expected an integer, found true"),
    ('export: {opset: "17"}', '6:17: export.opset: expected an integer, found "17"'),
    (
        "export: {exporter: dynamic}",
        '6:20: export.exporter: unknown value "dynamic"; did you mean dynamo?',
    ),
    (
        "export: {exporter: dynamo, opset: 18, do_constant_folding: false}",
        "6:39: export.do_constant_folding: ignored by exporter dynamo; use optimize: false",
    ),
    (
        "export: {external_data: true}",
        "6:10: export.external_data: ignored by exporter torchscript; remove it (the exporter "
        "decides by size)",
    ),
    (
        "simplify: {tool: none, fuse: false}",
        "6:24: simplify.fuse: has no effect with tool: none; remove it, or choose a tool",
    ),
    (
        "simplify: {tool: none, tensor_size_threshold: 1MiB}",
        "6:24: simplify.tensor_size_threshold: has no effect with tool: none",
    ),
    (
        "export: {exporter: dynamo, export_params: false}",
        "6:28: export.export_params: a file without its weights cannot be validated or built; "
        "remove it",
    ),
    (
        "export: {training: train}",
        "6:20: export.training: a graph in training mode cannot give the reference's outputs; "
        "remove it (the network is exported in evaluation mode)",
    ),
    (
        "engines: [ort-cup]",
        '6:11: engines.0: unknown engine preset "ort-cup"; did you mean ort-cpu?',
    ),
    (
        "engines: [{use: rtx}]",
        '6:17: engines.0.use: unknown engine preset "rtx"; presets: ort-cpu, ort-fp16, rtx-fp16',
    ),
    ("engines: [ort-cpu, ort-cpu]", None),
    ("tags: nightly", '6:7: tags: expected a list, found "nightly"'),
    (
        "tags: [nightly, two words]",
        "6:17: tags.1: expected a name of letters, digits and _ . + - that starts with a letter or "
        'digit, found "two words"',
    ),
    ("tag: [nightly]", "6:1: tag: unknown field; did you mean tags?"),
    ("owner: [a, b]", "6:8: owner: expected a string, found a list"),
    ("flaky: sometimes", '6:8: flaky: expected true, false or a list of stages, found "sometimes"'),
    ("flaky: [bench, benhc]", '6:16: flaky.1: unknown value "benhc"; did you mean bench?'),
    ("engines: ort-cpu", '6:10: engines: expected a list, found "ort-cpu"'),
    (
        "engines: [3]",
        "6:11: engines.0: expected the name of an engine preset or a map of engine fields, found 3",
    ),
    (
        "engines: [{name: x}]",
        "6:11: engines.0: the engine has no backend; add backend: coreml, executorch, "
        "onnxruntime, openvino, tensorrt or tensorrt_rtx, or use: PRESET",
    ),
    (
        "engines: [{name: x, backend: onnxruntim}]",
        '6:30: engines.0.backend: unknown backend "onnxruntim"; did you mean onnxruntime?',
    ),
    ("engines: [{backend: onnxruntime}]", "6:11: engines.0.name: required field is missing"),
    ("engines: [{use: ort-cpu, intra_op_thread: 2}]", None),
    (
        "outputs: {y: {shape: [bacth, 10]}}",
        '6:23: outputs.y.shape.0: dimension "bacth" is not declared in dims; did you mean batch?',
    ),
    ("outputs: {x: {}}", '6:11: outputs.x: an input is already named "x"'),
    ("bench: {cases: [mid]}", None),
    ("bench: {cases: []}", "6:16: bench.cases: expected at least 1 entry, found an empty list"),
    ("bench: {cases: [opt, opt]}", '6:22: bench.cases.1: case "opt" is listed twice'),
    (
        "bench: {baselines: [torch, torch]}",
        '6:28: bench.baselines.1: baseline "torch" is listed twice',
    ),
    (
        "bench: {baselines: [torh]}",
        '6:21: bench.baselines.0: unknown value "torh"; did you mean torch?',
    ),
    (
        "bench: {cuda_graph: yes}",
        '6:21: bench.cuda_graph: expected true, false or a list of both, found "yes"',
    ),
    (
        "bench: {cuda_graph: []}",
        "6:21: bench.cuda_graph: expected true, false or a list of both, found an empty list",
    ),
    ("bench: {in_flight: 0}", "6:20: bench.in_flight: expected at least 1, found 0"),
    ("bench: {transfers: host}", '6:20: bench.transfers: unknown value "host"'),
    ("bench: {wait: sleep}", '6:15: bench.wait: unknown value "sleep"'),
    (
        "engines: [ort-cpu]\nbench: {cuda_graph: [false, true]}",
        "7:9: bench.cuda_graph: not supported by onnxruntime on a CPU, only by TensorRT; "
        "remove it, or add a TensorRT engine",
    ),
    (
        "engines: [{backend: onnxruntime, name: e, provider: cuda}]\nbench: {in_flight: 2}",
        "7:9: bench.in_flight: not supported by onnxruntime on a GPU, only by TensorRT",
    ),
    (
        "engines: [ort-cpu]\nbench: {baselines: [torch, torch_cuda_graph]}",
        "7:28: bench.baselines.1: torch_cuda_graph needs a GPU, and no engine of this model "
        "runs on one; remove it",
    ),
    (
        "bench: {duration: 3 parsecs}",
        '6:19: bench.duration: expected a duration such as 3s, 200ms or 2min, found "3 parsecs"',
    ),
    ("validate: {rtol: -1}", "6:18: validate.rtol: expected at least 0, found -1"),
    ("validate: {rtol: .nan}", "6:18: validate.rtol: expected a finite number, found nan"),
    ("timeout: {exprot: 3s}", '6:11: timeout.exprot: unknown value "exprot"; did you mean export?'),
    ("verify: [min]", "6:9: verify: expected a map, found a list"),
    ("dynamic_axes: {y: {0: batch}}", '6:16: dynamic_axes.y: unknown input or output "y"'),
    (
        "dynamic_axes: {x: {4: batch}}",
        '6:20: dynamic_axes.x.4: axis 4 is outside the shape of "x" (4 dimensions',
    ),
    ("dynamic_axes: {x: {2: height}}", None),
    (
        "matrix: {export.opset: 17}",
        "6:24: matrix.export.opset: expected a list of values, found 17",
    ),
    ("matrix: {export.opset: [17, 99]}", None),
    ("matrix: {model: [a, b]}", "6:10: matrix.model: a matrix cannot vary model"),
    ("matrix: {export.opset: [17, 17]}", None),
    (
        "extends: common.yaml",
        "6:10: extends: file common.yaml does not exist; paths are relative to this file",
    ),
    ("extends: ../..", '6:10: extends: expected the path of a manifest, found the folder "../.."'),
    (
        "extends: ../../../x.yaml",
        '6:10: extends: path "../../../x.yaml" leaves the project; paths are relative to this file',
    ),
    (
        "extends: net.yaml",
        "6:10: extends: the manifest extends itself: net.yaml → net.yaml; break the cycle",
    ),
]


@pytest.mark.parametrize(("extra", "expected"), FIELDS, ids=[extra for extra, _ in FIELDS])
def test_an_invalid_field_is_one_line(project, extra, expected):
    project.model(extra)
    [error] = project.errors()
    assert error.startswith(f"{NET}:")
    if expected is not None:
        assert error.startswith(f"{NET}:{expected}")


def test_whole_sentences(project):
    project.model("engines: [ort-cpu, ort-cpu]")
    [error] = project.errors()
    assert error.startswith(f'{NET}:6:20: engines.1: two engines of this model are named "ort-cpu"')
    project.model("engines: [{use: ort-cpu, intra_op_thread: 2}]")
    assert project.errors() == [
        f"{NET}:6:26: engines.0.intra_op_thread: unknown field; did you mean intra_op_threads?"
    ]
    project.model("bench: {cases: [mid]}")
    assert project.errors() == [
        f'{NET}:6:17: bench.cases.0: unknown value "mid"; did you mean min?'
    ]
    project.model("dynamic_axes: {x: {2: height}}")
    [error] = project.errors()
    assert error.startswith(
        f'{NET}:6:23: dynamic_axes.x.2: dimension "height" is not declared in dims'
    )
    project.model("matrix: {export.opset: [17, 99]}")
    [error] = project.errors()
    assert error.startswith(f"{NET}:6:29: matrix.export.opset.1: opset 99 is not supported")
    project.model("matrix: {export.opset: [17, 17]}")
    [error] = project.errors()
    assert 'two combinations are both named "net-17"' in error


INPUTS = [
    (
        "{shape: [n, 3]}",
        'inputs.x.shape.0: dimension "n" is not declared in dims; add dims: {n: {min: …, opt: '
        "…, max: …}}",
    ),
    (
        "{shape: [-1, 3]}",
        "inputs.x.shape.0: expected a non-negative integer or the name of a dimension, found -1",
    ),
    ("{shape: 3}", "inputs.x.shape: expected a list, found 3"),
    ("{dtype: float32}", "inputs.x.shape: required field is missing"),
    (
        "{shape: [3], dtype: flaot32}",
        'inputs.x.dtype: unknown value "flaot32"; did you mean float32?',
    ),
    (
        "{shape: [3], dtype: string}",
        "inputs.x: cannot draw random values of dtype string; give data: constant, npz or python",
    ),
    (
        "{shape: [3], dtype: int4, data: {random: normal}}",
        "inputs.x.data.random: cannot draw normal values of dtype int4; use random: integers",
    ),
    (
        "{shape: [3], dtype: int4, data: {random: integers, high: 9}}",
        "inputs.x.data.high: 9 is outside the range of int4 (-8 to 7); high is exclusive",
    ),
    (
        "{shape: [3], data: {random: uniform, low: 2}}",
        "inputs.x.data.low: high 1 is not greater than low 2",
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
        "inputs.x.data.constant: the constant is a string, but the input has dtype float32",
    ),
    (
        "{shape: [3], data: {rnadom: normal}}",
        "inputs.x.data: expected one of the fields random, npz, python, constant, images; did "
        "you mean random?",
    ),
    ("{shape: [3], keyword: 3x}", "inputs.x.keyword: expected a word of letters, digits and _"),
    (
        "{shape: [3], data: {npz: plugins/x.npz}}",
        "inputs.x.data.npz: file plugins/x.npz does not exist",
    ),
]


@pytest.mark.parametrize(("tensor", "expected"), INPUTS, ids=[tensor for tensor, _ in INPUTS])
def test_an_invalid_input_is_one_line(project, tensor, expected):
    project.write(NET, f"model: net\nsource: {{torchvision: resnet18}}\ninputs:\n  x: {tensor}\n")
    [error] = project.errors()
    assert error.startswith(f"{NET}:4:")
    assert f": {expected}" in error


def test_a_keyword_used_twice(project):
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
        f'{NET}:5:28: inputs.b.keyword: input "a" already has the keyword "image"; remove one of '
        f"them"
    ]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("{args: [[a, bb]]}", 'call.args.0.1: no input is named "bb"; did you mean b?'),
        (
            "{args: [a, b, mean]}",
            'call.args.2: no input is named "mean"; inputs: a, b; a string is {text: mean}',
        ),
        ("{args: [a, null]}", 'call: call does not use the input "b"; add it, or remove the input'),
        ("{kwargs: {a-b: a}, args: [b, a]}", "call.kwargs.a-b: expected a word of letters, digits"),
        ("{arguments: [a, b]}", "call.arguments: unknown field; did you mean args?"),
        ("[a, b]", "call: expected a map, found a list"),
    ],
)
def test_an_invalid_call(project, call, expected):
    project.write(
        NET,
        f"model: net\nsource: {{torchvision: resnet18}}\ncall: {call}\n"
        "inputs: {a: {shape: [3]}, b: {shape: [3]}}\n",
    )
    [error] = project.errors()
    assert error.startswith(f"{NET}:3:")
    assert f": {expected}" in error


def test_a_call_with_a_keyword_or_an_onnx_source(project):
    inputs = "inputs: {a: {shape: [3], keyword: image}}\ncall: {args: [[a]]}\n"
    project.write(NET, f"model: net\nsource: {{torchvision: resnet18}}\n{inputs}")
    expected = "inputs.a.keyword: call has the arguments of forward; remove it"
    assert project.errors() == [f"{NET}:3:26: {expected}"]
    project.write("net.onnx", "")
    project.write(NET, f"model: net\nsource: {{onnx: net.onnx}}\n{inputs}")
    expected = "call: an ONNX source takes the inputs as they are; remove it"
    assert f"{NET}:4:1: {expected}" in project.errors()


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ("{n: {min: 4, opt: 2, max: 8}}", "dims.n: min 4, opt 2, max 8 are not ascending"),
        ("{n: {min: 1, opt: 9, max: 8}}", "dims.n: min 1, opt 9, max 8 are not ascending"),
        ("{n: {min: 1, opt: 2, max: 8, odd: 9}}", "dims.n: odd 9 is outside the range 1 to 8"),
        ("{n: {min: 1, opt: 2}}", "dims.n.max: required field is missing; add the field"),
        (
            "{n: {min: 1, opt: 2, max: 4}, m: {min: 1, opt: 2, max: 4}}",
            'dims.m: dimension "m" is not used by any input; remove it',
        ),
        ("[n]", "dims: expected a map, found a list"),
    ],
)
def test_invalid_dims(project, dims, expected):
    project.write(
        NET,
        f"model: net\nsource: {{torchvision: resnet18}}\ninputs: {{x: {{shape: [n]}}}}\ndims: "
        f"{dims}\n",
    )
    errors = project.errors()
    assert any(error.startswith(f"{NET}:4:") and error.endswith(expected) for error in errors), (
        errors
    )


@pytest.mark.parametrize(
    "name", ["a/b", "two words", "../up", "", ".hidden", "a:b", "naïve", "x" * 101]
)
def test_an_invalid_model_name(project, name):
    project.write(
        NET, f'model: "{name}"\nsource: {{torchvision: r}}\ninputs: {{x: {{shape: [1]}}}}\n'
    )
    [error] = project.errors()
    assert error.startswith(f"{NET}:1:8: model: ")


def test_the_same_name_in_two_files(project):
    project.model()
    project.write("configs/models/sub/other.yaml", (project.root / NET).read_text())
    assert project.errors() == [
        f'configs/models/sub/other.yaml:1:8: model: model "net" is already declared in {NET}; '
        f"rename one of them"
    ]


def test_export_options_of_an_onnx_source(project):
    project.write("net.onnx", b"onnx")
    project.write(
        NET,
        "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\nexport: {opset: 99}\n",
    )
    assert project.errors() == [
        f"{NET}:4:10: export.opset: ignored for an ONNX source, which is not exported; remove it"
    ]
    project.write("configs/project.yaml", "defaults: {export: {opset: 18}}")
    project.write(NET, "model: net\nsource: {onnx: net.onnx}\ninputs: {x: {shape: [1]}}\n")
    assert list(project.load().models) == ["net"]


def test_a_misspelled_section_is_the_only_error(project):
    project.write(NET, MANIFEST.replace("inputs:", "inptus:"))
    assert project.errors() == [f"{NET}:3:1: inptus: unknown field; did you mean inputs?"]
    project.write(NET, MANIFEST.replace("dims:", "dmis:"))
    assert project.errors() == [f"{NET}:5:1: dmis: unknown field; did you mean dims?"]
    project.write(NET, MANIFEST.replace("shape:", "sahpe:"))
    assert project.errors() == [f"{NET}:4:7: inputs.x.sahpe: unknown field; did you mean shape?"]


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


@pytest.mark.parametrize(
    "extra",
    [
        "export: {exporter: dynmo, optimize: true}",
        "export: {exprter: dynamo, optimize: true}",
        "engines: [{backend: tensorrt, name: e, precision: fp17, quantization: explicit}]",
        "engines: [{backend: tensort, name: e}]\nbench: {cuda_graph: true}",
        "engines: [{use: ort-cpu, precision: int8}]\ncalibraton: {data: {x: {random: normal}}}",
        "engines: [{use: ort-cpu, precision: int8}]\ncalibration: {data: {x: {rndom: normal}}}",
        "engines: [{use: rtx-fp16, profiles: [{x: {min: 1}}]}]",
        "surgery: [{rename: {x: 3}}, {cast: {image: uint8}}]",
    ],
)
def test_a_refused_value_has_no_follow_up_errors(project, extra):
    project.model(extra)
    places = {error.split(": ")[0].split(":")[1] for error in project.errors()}
    assert len(places) == 1
    assert not any(
        follow_up in error
        for error in project.errors()
        for follow_up in (
            "ignored",
            "calibration data",
            "not supported",
            "at this step",
            "no range",
        )
    )


def test_a_dimension_with_an_invalid_step_and_a_fixed_value(project):
    project.model("surgery: [{fix_dims: {batch: 2}}]\n")
    file = project.root / NET
    file.write_text(file.read_text().replace("max: 4}", "max: 4, multiple_of: 0}"))
    assert project.errors() == [f"{NET}:5:53: dims.batch.multiple_of: expected at least 1, found 0"]


def test_every_section_of_the_project_file_is_known(project):
    project.write(
        "configs/project.yaml",
        "defaults: {}\ncache: {remote: /cache}\ntiming_caches: shared\ntoolchains: {}\n",
    )
    project.model()
    assert list(project.load().models) == ["net"]
    project.write("configs/project.yaml", 'timing_caches: ""\ndefault: {}\n')
    assert project.errors() == [
        'configs/project.yaml:1:16: timing_caches: expected at least 1 character, found ""',
        "configs/project.yaml:2:1: default: unknown field; did you mean defaults?",
    ]


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


def test_a_broken_shared_file_is_reported_once(project):
    project.write("configs/engines.yaml", "ort-cpu: [\n")
    project.model("engines: [ort-cpu]", name="a")
    project.model("engines: [ort-cpu]", name="b")
    [error] = project.errors()
    assert error.startswith("configs/engines.yaml:2:1: not valid YAML")


def test_presets_that_use_each_other(project):
    project.write("configs/engines.yaml", "a: {use: b}\nb: {use: a}\nc: {use: d}\n")
    errors = project.errors()
    assert (
        "configs/engines.yaml:2:10: b.use: the engine preset uses itself: a → b → a; break the "
        "cycle" in errors
    )
    assert 'configs/engines.yaml:3:10: c.use: unknown engine preset "d"; presets: a, b, c' in errors
