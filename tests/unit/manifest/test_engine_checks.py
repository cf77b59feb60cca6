"""Errors in TensorRT engines, with their positions."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("typing: strict", "engines.0.typing: "),
        ("precision: fp17", "engines.0.precision: "),
        ("workspace: 4GiBs", "engines.0.workspace: "),
        (
            "workspace: 0",
            "engines.0.workspace: an engine cannot be built without workspace memory; set a "
            "size such as 4GiB, or remove it",
        ),
        ("builder_optimization_level: 6", "engines.0.builder_optimization_level: "),
        ("tactic_sources: [cublass]", "engines.0.tactic_sources.0: "),
        ("hardware_compatibility: ampere", "engines.0.hardware_compatibility: "),
        ("dla_core: -1", "engines.0.dla_core: "),
        ("precision_share: 2", "engines.0.precision_share: "),
        ("flags: {fp16: true}", "engines.0.flags.fp16: "),
        ("refits: true", "engines.0.refits: unknown field"),
        ("io: {x: {format: nchw}}", "engines.0.io.x.format: "),
        ("io: {z: {format: hwc8}}", 'engines.0.io.z: unknown input or output "z"'),
        (
            "io: {xx: {format: hwc8}}",
            'engines.0.io.xx: unknown input or output "xx"; did you mean x?',
        ),
        (
            "gpu_fallback: true",
            "engines.0.gpu_fallback: has no effect without dla_core; set dla_core, or remove it",
        ),
        ("dla_managed_sram: 1MiB", "engines.0.dla_managed_sram: has no effect without dla_core"),
        (
            "exclude_lean_runtime: true",
            "engines.0.exclude_lean_runtime: only a version-compatible engine contains a lean "
            "runtime; "
            "set version_compatible: true, or remove it",
        ),
        (
            "typing: strong, layer_precisions: [{layers: a, precision: fp32}]",
            "engines.0.layer_precisions: a strongly typed engine takes the type of each layer "
            "from the graph; "
            "remove it, or set typing: weak",
        ),
        ("quantization: explicit_", "engines.0.quantization: "),
        (
            "precision: fp16, quantization: explicit",
            "engines.0.quantization: an fp16 engine has no quantizers in its graph, only int8 "
            "and fp8 engines do; "
            "set precision: int8, or remove it",
        ),
        (
            "quantization: explicit",
            "engines.0.quantization: an fp32 engine has no quantizers in its graph, only int8",
        ),
        (
            "precision: int8, quantization: implicit, typing: strong",
            "engines.0.quantization: a strongly typed engine takes types from the graph, so its "
            "builder cannot "
            "calibrate; set typing: weak, or quantization: explicit",
        ),
        (
            "precision: fp8, quantization: implicit",
            "engines.0.quantization: builders calibrate int8 only, and the precision of this "
            "engine is fp8; "
            "set quantization: explicit, or remove it",
        ),
        (
            "precision: fp16, quantization: implicit, layer_precisions: [{layers: a, precision: "
            "fp32}]",
            "engines.0.quantization: builders calibrate int8 only, and the precision of this "
            "engine is fp16; "
            "set precision: int8, or remove it",
        ),
        (
            "precision: int8, quantization: explicit, layer_precisions: [{layers: a, precision: "
            "int8}]",
            "engines.0.layer_precisions.0.precision: the quantizers of the graph decide which "
            "layers are int8; "
            "remove it, and choose layers with quantize.exclude and quantize.operators",
        ),
        (
            "precision: fp16, quantization: implicit, layer_precisions: [{layers: a, precision: "
            "int8}]",
            "engines.0.quantization: an engine with implicit quantization needs calibration "
            "data, but this model has no section "
            "calibration; add calibration: {data: {x: {",
        ),
        (
            "layer_precisions: [{layers: '', precision: fp32}]",
            "engines.0.layer_precisions.0.layers: ",
        ),
        (
            "layer_precisions: [{layers: a, precision: half}]",
            "engines.0.layer_precisions.0.precision: ",
        ),
        (
            "typing: weak, weight_streaming: true",
            "engines.0.weight_streaming: weight streaming needs a strongly typed engine; set "
            "typing: strong",
        ),
        ("network: hooks.py", "engines.0.network: "),
        (
            "network: 'plugins/hooks/x.py:tweak'",
            "engines.0.network: file plugins/hooks/x.py does not exist",
        ),
        ("network: 'dodo.py:tweak'", "engines.0.network: dodo.py does not define tweak"),
        (
            "profiles: [{x: {values: {min: [1], opt: [1], max: [2]}}}]",
            "engines.0.profiles.0.x.values: a range of values needs an input of fixed shape "
            "with at most one dimension",
        ),
        (
            "profiles: [{x: *X, s: {values: {min: [1], opt: [1], max: [2]}}}]",
            "engines.0.profiles.0.s.values.min: expected 2 values, one per element of the "
            "input, found 1",
        ),
        (
            "profiles: [{x: *X, s: {values: {min: [1, 4], opt: [1, 3], max: [2, 8]}}}]",
            "engines.0.profiles.0.s.values: min 4, opt 3, max 8 of value 1 are not ascending",
        ),
        (
            "profiles: [{x: *X, s: {values: {min: [1, 4], opt: [1, 4]}}}]",
            "engines.0.profiles.0.s.values.max: ",
        ),
    ],
)
def test_an_invalid_engine_is_located(project, fields, expected):
    fields = fields.replace("*X", "{min: [1, 4], opt: [2, 4], max: [4, 4]}")
    project.write(NET, f"""\
        model: net
        source: {{torchvision: resnet18}}
        inputs: {{x: {{shape: [batch, 4]}}, s: {{shape: [2], dtype: int64}}}}
        outputs: {{y: {{shape: [batch, 4]}}}}
        dims: {{batch: {{min: 1, opt: 2, max: 4}}}}
        engines:
          - {{backend: tensorrt, name: e, {fields}}}
        """)  # fmt: skip
    errors = project.errors()
    assert any(error.startswith(f"{NET}:7:") and expected in error for error in errors), errors


def test_a_valid_engine_with_every_field_is_accepted(project):
    project.write("dodo.py", "def tweak(network, config): ...\n")
    project.write(NET, """\
        model: net
        source: {torchvision: resnet18}
        inputs: {x: {shape: [batch, 4]}, s: {shape: [2], dtype: int64}}
        outputs: {y: {shape: [batch, 4]}}
        dims: {batch: {min: 1, opt: 2, max: 4}}
        engines:
          - backend: tensorrt
            name: e
            precision: fp16
            typing: weak
            tf32: false
            profiles:
              - x: {min: [1, 4], opt: [2, 4], max: [4, 4]}
                s: {values: {min: [1, 4], opt: [2, 4], max: [4, 4]}}
            io: {x: {format: linear, dtype: float16}, y: {format: linear}}
            layer_precisions: [{layers: "/head/*", precision: fp32}]
            precision_constraints: prefer
            precision_share: 0.5
            network: dodo.py:tweak
            workspace: 4GiB
            tactic_dram: 2GiB
            tactic_shared_memory: 64KiB
            tiling_optimization_level: full
            l2_limit_for_tiling: 1MiB
            max_aux_streams: 2
            avg_timing_iterations: 4
            tactic_sources: [cublas, jit_convolutions]
            sparsity: true
            refit: true
            version_compatible: true
            exclude_lean_runtime: true
            hardware_compatibility: ampere_plus
            dla_core: 0
            gpu_fallback: true
            dla_managed_sram: 1MiB
            dla_local_dram: 1GiB
            dla_global_dram: 512MiB
            direct_io: true
            max_threads: 4
            profiling_verbosity: none
            flags: {debug: true}
        """)  # fmt: skip
    engine = project.load().models["net"].data["engines"][0]
    assert (engine["workspace"], engine["tactic_shared_memory"], engine["dla_global_dram"]) == (
        4 << 30,
        65536,
        1 << 29,
    )
    assert engine["profiles"][0]["s"] == {"values": {"min": [1, 4], "opt": [2, 4], "max": [4, 4]}}
    assert engine["io"]["x"] == {"format": "linear", "dtype": "float16"}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("{y: {min: [1], opt: [1], max: [1]}}", 'unknown input "y"'),
        (
            "{x: {min: [1], opt: [1], max: [1]}}",
            "expected 4 sizes, one per dimension of the input, found 1",
        ),
        (
            "{x: {min: [4,3,32,32], opt: [2,3,32,32], max: [8,3,32,32]}}",
            "min 4, opt 2, max 8 of axis 0 are not ascending",
        ),
        (
            "{x: {min: [1,3,32,32], opt: [1,3,32,32], max: [1,3,64,32]}}",
            "axis 2 is 32 to 64, but the input has the fixed size 32",
        ),
        ("{}", 'the profile has no range for the dynamic input "x"; add x: {min: […]'),
        (
            "{x: {min: [1,3,32,32], opt: [2,3,32,32], max: [64,3,32,32]}}",
            "profiles.0.x.max: axis 0 (batch) is 64, outside the range 1 to 4 of dims.batch; "
            "widen dims",
        ),
        (
            "{x: {min: [0,3,32,32], opt: [2,3,32,32], max: [4,3,32,32]}}",
            "profiles.0.x.min: axis 0 (batch) is 0, outside the range 1 to 4 of dims.batch",
        ),
        (
            "{X: {min: [1,3,32,32], opt: [2,3,32,32], max: [4,3,32,32]}}",
            'unknown input "X"; did you mean x?',
        ),
    ],
)
def test_invalid_optimization_profiles(project, profile, expected):
    project.model(f"engines: [{{use: rtx-fp16, profiles: [{profile}]}}]")
    errors = project.errors()
    assert any(error.startswith(f"{NET}:6:") and expected in error for error in errors), errors


def test_engines_of_tensorrt_rtx_need_workspace_memory(project):
    project.model("engines: [{use: rtx-fp16, workspace: 0}]")
    assert any("cannot be built without workspace memory" in text for text in project.errors())


def test_profiles_respect_multiple_of_and_shared_dimensions(project):
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
        f"{NET}:8:32: engines.0.profiles.0.x.opt: axis {axis} (n) is 10, but dims.n.multiple_of "
        f"is 4; nearest: 8 or 12"
        for axis in (0, 1)
    ]
    project.write(NET, manifest.replace("[10, 10]", "[8, 8]"))
    assert project.errors() == [
        f"{NET}:8:45: engines.0.profiles.0.x.max: axis 1 (n) is 12, but axis 0 of x (also n) is "
        f"16; "
        "give both the same size, or two names in dims"
    ]
    project.write(NET, manifest.replace("[10, 10]", "[8, 8]").replace("[16, 12]", "[12, 12]"))
    (error,) = project.errors()
    assert "profiles.0.y.max: axis 0 (n) is 16, but axis 0 of x (also n) is 12" in error
