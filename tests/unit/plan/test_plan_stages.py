"""Dependencies, files and options of every stage of a manifest with all stages.

tests/integration/plan/keys_table.md has the reason of each dependency.
"""

from collections.abc import Mapping
from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import NO_NEEDS, Action, FileRef, Needs

MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"python": "plugins/net.py:make", "weights": {"file": "weights/net.pth"}},
    "inputs": {"x": {"shape": ["batch", 4], "data": {"images": "data/x"}}},
    "outputs": {"y": {"compare": {"policy": "elementwise"}}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "ops": [{"op": "a::b", "library": {"sources": ["plugins/b.c"]}}],
    "surgery": [
        {"function": "plugins/a.py:f"},
        {"rename": {"x": "z", "y": "v"}, "when": "after_simplify"},
    ],
    "calibration": {"data": {"z": {"python": "plugins/c.py:f"}}},
    "bench": {"baselines": ["torch", "onnxruntime"], "cases": ["min", "max"]},
    "engines": [
        {"backend": "onnxruntime", "name": "ort"},
        {"backend": "tensorrt_rtx", "name": "rtx", "precision": "fp16"},
        {"backend": "onnxruntime", "name": "int8", "precision": "int8"},
    ],
}
ENGINES = ("ort", "rtx", "int8")


def plan(**changes: Any) -> dict[str, Action]:
    return plan_of({**MANIFEST, **changes})


def test_every_dependency_is_read() -> None:
    actions = plan()
    for action in actions.values():
        read = set(action.inputs.values())
        for target in action.after:
            assert read & set(actions[target].outputs.values()), (action.target, target)
        known = {ref for target in action.after for ref in actions[target].outputs.values()}
        assert read <= known, action.target


# tools; families of variables; devices; modules of code besides the stage
DEPENDENCIES = {
    "operators:net": "cc; ; ; ",
    "export:net": "numpy onnx pillow python torch; torch; ; models.sources.python",
    "reference:net": "numpy pillow python torch; torch; ; models.sources.python",
    "surgery:net:after_export": "numpy onnx onnxruntime python; onnxruntime; ; ",
    "simplify:net": "numpy onnx onnxruntime onnxsim; onnxruntime onnxsim; ; ",
    "surgery:net:after_simplify": "numpy onnx onnxruntime; onnxruntime; ; ",
    "calibrate:net": "numpy onnx onnxruntime python; onnxruntime; ; ",
    "convert:net:fp16": "numpy onnx onnxruntime; onnxruntime; ; stages.convert.typed",
    "convert:net:int8": "numpy onnx onnxruntime; onnxruntime; ; stages.convert.quantized",
    "validate:net": "numpy onnx onnxruntime; onnxruntime; ; ",
    "engine:net:ort": "onnx onnxruntime; onnxruntime; cores cpu; backends.onnxruntime.backend",
    "verify:net:ort": "numpy onnxruntime; onnxruntime; cpu; backends.onnxruntime.backend",
    "bench:net:ort": (
        "numpy onnxruntime pillow python torch; onnxruntime speed torch; cores cpu; "
        "backends.onnxruntime.backend models.sources.python"
    ),
    "engine:net:rtx": "onnx tensorrt_rtx; gpu; gpu; backends.tensorrt_rtx.backend",
    "verify:net:rtx": "numpy tensorrt_rtx; gpu; gpu; backends.tensorrt_rtx.backend",
    "bench:net:rtx": (
        "numpy onnxruntime pillow python tensorrt_rtx torch; gpu onnxruntime speed torch; "
        "cores cpu gpu; backends.tensorrt_rtx.backend models.sources.python"
    ),
}


def test_each_stage_depends_on_exactly_what_it_uses() -> None:
    found = {}
    for target, action in plan().items():
        stage, *code = (module.removeprefix("buildsys.") for module in action.code)
        assert stage == f"stages.{action.stage}.stage"
        parts = (action.tools, action.environment, action.devices, code)
        found[target] = "; ".join(" ".join(sorted(set(part))) for part in parts)
    assert {target: found[target] for target in DEPENDENCIES} == DEPENDENCIES
    *others, report = plan().values()
    rooms = {f"buildsys.stages.{action.stage}.report" for action in others}  # describe the results
    assert set(report.code) == {"buildsys.stages.report.stage", *rooms}


SOURCES = {
    "operators:net": ["plugins/b.c"],
    "export:net": ["plugins/net.py", "data/x/"],
    "reference:net": ["plugins/net.py", "data/x/"],
    "surgery:net:after_export": ["plugins/a.py"],
    "calibrate:net": ["plugins/c.py"],
    **{f"bench:net:{engine}": ["plugins/net.py", "data/x/"] for engine in ENGINES},
}


def test_each_stage_has_the_files_that_it_loads() -> None:
    actions = plan()
    assert {t: [*a.sources] for t, a in actions.items() if a.sources} == SOURCES
    assert {target for target, action in actions.items() if action.weights} == {
        "export:net",
        "reference:net",
        *(f"bench:net:{engine}" for engine in ENGINES),
    }
    orders = {target: action.order for target, action in actions.items() if action.order}
    assert orders == {f"bench:net:{name}": (f"verify:net:{name}",) for name in ENGINES}


def in_folders(files: Mapping[str, FileRef]) -> dict[str, set[str]]:
    """Return folder -> roles and file names; a file of a case has the case's name."""
    folders: dict[str, list[str]] = {}
    for role, ref in files.items():
        folder, _, name = ref.path.removeprefix("net/").rpartition("/")
        folders.setdefault(folder, []).append(f"{role}:{name}")
    return {folder: set(names) for folder, names in folders.items()}


def words(table: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, set[str]]]:
    return {
        target: {folder: set(text.split()) for folder, text in folders.items()}
        for target, folders in table.items()
    }


GRAPH = "model:model.onnx model.data:model.onnx.data"
CASES = "case.min:min.npz case.opt:opt.npz case.max:max.npz case.odd:odd.npz"
FURTHER = " ".join(f"case.drawn-{n}:drawn-{n}.npz" for n in range(1, 9))
LIBRARY = {"operators": "library.b:b.so"}
ORT_ENGINE = "engine:engine.onnx engine.data:engine.onnx.data"
RTX_ENGINE = "engine:engine.engine engine.data:engine.engine.data"
AFTER_SIMPLIFY = {"surgery/after_simplify": GRAPH}
ASSEMBLED = "assembled:assembled.json"
TWO_CASES = "case.min:min.npz case.max:max.npz"
TWO_OF_NETWORK = f"network.{TWO_CASES.replace(' ', ' network.')}"
READ: dict[str, dict[str, str]] = {
    "operators:net": {},
    "export:net": {},
    "reference:net": {},
    "surgery:net:after_export": {"export": GRAPH, "reference": CASES, **LIBRARY},
    "simplify:net": {
        "surgery/after_export": GRAPH,
        "reference": "case.min:min.npz case.odd:odd.npz",
        **LIBRARY,
    },
    "surgery:net:after_simplify": {
        "simplify": f"{GRAPH} {ASSEMBLED}",
        "reference": f"{CASES} {FURTHER}",
        **LIBRARY,
    },
    "calibrate:net": {**AFTER_SIMPLIFY, **LIBRARY},
    "convert:net:fp16": {"surgery/after_simplify": f"{GRAPH} {ASSEMBLED} {CASES}", **LIBRARY},
    "convert:net:int8": {
        "surgery/after_simplify": f"{GRAPH} {ASSEMBLED} {CASES}",
        "calibrate": "ranges:ranges.json",
        **LIBRARY,
    },
    "validate:net": {
        "surgery/after_export": f"exported.{GRAPH.replace(' ', ' exported.')}",
        "surgery/after_simplify": (
            f"simplified.{GRAPH.replace(' ', ' simplified.')}"
            f" simplified.{CASES.replace(' ', ' simplified.')}"
            " assembled_simplified:assembled.json"
            f" simplified.{FURTHER.replace(' ', ' simplified.')}"
        ),
        "simplify": ASSEMBLED,
        "reference": f"{CASES} {FURTHER} sizes:sizes.npz",
        **LIBRARY,
    },
    "engine:net:ort": {**AFTER_SIMPLIFY, **LIBRARY},
    "verify:net:ort": {
        "engine/ort": f"{ORT_ENGINE} library.b:b.so",
        "surgery/after_simplify": f"{ASSEMBLED} {CASES} {FURTHER}",
    },
    "bench:net:ort": {
        "engine/ort": f"{ORT_ENGINE} library.b:b.so",
        "surgery/after_simplify": f"{TWO_CASES} {GRAPH}",
        "reference": TWO_OF_NETWORK,
    },
    "engine:net:rtx": {"convert/fp16": GRAPH},
    "verify:net:rtx": {
        "engine/rtx": RTX_ENGINE,
        "surgery/after_simplify": f"{ASSEMBLED} {CASES} {FURTHER}",
    },
    "bench:net:rtx": {
        "engine/rtx": RTX_ENGINE,
        "surgery/after_simplify": TWO_CASES,
        "reference": TWO_OF_NETWORK,
        "convert/fp16": GRAPH,
    },
}


def test_each_stage_reads_the_files_of_its_graph() -> None:
    actions = plan()
    assert {target: in_folders(actions[target].inputs) for target in READ} == words(READ)
    reported = actions["report:net"].inputs
    others = actions.keys() - {"report:net"}
    assert {role for role in reported if not role.startswith("graph:")} == others
    assert all(reported[target] == actions[target].outputs["result"] for target in others)
    graphs = {role.removeprefix("graph:") for role in reported.keys() - others}
    assert graphs == {
        "export:net",
        "surgery:net:after_export",
        "simplify:net",
        "surgery:net:after_simplify",
        "convert:net:fp16",
        "convert:net:int8",
    }
    assert all(reported[f"graph:{t}"] == actions[t].outputs["model"] for t in graphs)


WRITTEN = {
    "operators:net": {"operators": "library.b:b.so result:operators.json"},
    "export:net": {"export": f"{GRAPH} origins:origins.json result:export.json"},
    "reference:net": {"reference": f"{CASES} {FURTHER} sizes:sizes.npz result:reference.json"},
    "surgery:net:after_export": {"surgery/after_export": f"{GRAPH} result:surgery.json"},
    "simplify:net": {"simplify": f"{GRAPH} {ASSEMBLED} result:graph.json"},
    "surgery:net:after_simplify": {
        "surgery/after_simplify": f"{GRAPH} {CASES} {FURTHER} {ASSEMBLED} result:surgery.json"
    },
    "calibrate:net": {"calibrate": "batches:batches.npz ranges:ranges.json result:calibrate.json"},
    "convert:net:fp16": {"convert/fp16": f"{GRAPH} result:convert.json"},
    "validate:net": {"validate": "result:result.json"},
    "engine:net:ort": {"engine/ort": f"library.b:b.so {ORT_ENGINE} result:engine.json"},
    "verify:net:ort": {"verify": "result:ort.json"},
    "bench:net:ort": {"bench": "result:ort.json"},
    "engine:net:rtx": {"engine/rtx": f"{RTX_ENGINE} result:engine.json"},
    "report:net": {
        "report": "result:report.json markdown:report.md picture.exported:exported.svg"
        " picture.simplified:simplified.svg"
    },
}


def test_each_stage_writes_to_its_own_folder() -> None:
    actions = plan()
    assert {target: in_folders(actions[target].outputs) for target in WRITTEN} == words(WRITTEN)
    plain = plan(report={"formats": ["json"]})["report:net"]
    assert plain.outputs.keys() == {"result"}


OPERATORS = [{"op": "a::b", "kind": "library", "library": "b"}]
OPTIONS = {
    "operators:net": "libraries",
    "export:net": "source example inputs outputs data export",
    "reference:net": "source example inputs outputs data cases further",
    "surgery:net:after_export": "steps inputs data cases spans operators",
    "simplify:net": "simplify cases inputs compare operators",
    "surgery:net:after_simplify": "steps inputs cases tolerance operators",
    "calibrate:net": "calibration inputs dims operators",
    "convert:net:fp16": "precision exclude tolerance cases compare operators",
    "convert:net:int8": "precision quantize tolerance cases compare operators",
    "validate:net": "tolerance compare cases simplified_cases compare_simplified further operators",
    "engine:net:ort": "engine ranges operators",
    "verify:net:ort": "engine tolerance cases further compare operators",
    "bench:net:ort": "engine bench cases operators network",
    "engine:net:rtx": "engine dims inputs operators",
    "verify:net:rtx": "engine tolerance cases further compare",
    "bench:net:rtx": "engine bench cases network",
}


def test_each_stage_has_exactly_its_options() -> None:
    actions = plan()
    assert {target: {*actions[target].options} for target in OPTIONS} == {
        target: {*fields.split()} for target, fields in OPTIONS.items()
    }


def test_limits_come_from_the_section_of_the_stage() -> None:
    options = {
        target: action.options
        for target, action in plan(
            validate={"rtol": 0.25, "cases": ["min", "odd"]},
            verify={"fp16": {"rtol": 0.5}, "int8": {"rtol": 0.75}, "cases": ["opt", "odd"]},
        ).items()
    }
    assert {
        t: found["tolerance"]["rtol"] for t, found in options.items() if "tolerance" in found
    } == {
        "surgery:net:after_simplify": 0.25,
        "validate:net": 0.25,
        "convert:net:fp16": 0.5,
        "convert:net:int8": 0.75,
        "verify:net:rtx": 0.5,
        "verify:net:int8": 0.75,
        "verify:net:ort": options["verify:net:ort"]["tolerance"]["rtol"],
    }
    for section in ("cases", "simplified_cases"):
        assert {*options["validate:net"][section]} == {"min", "odd"}
    for target in ("convert:net:fp16", "verify:net:rtx"):
        assert {*options[target]["cases"]} == {"opt", "odd"}


def test_an_onnx_file_is_copied_and_run_in_onnx_runtime() -> None:
    source = {"onnx": "models/net.onnx", "seed": 5}
    function = {"op": "a::b", "function": "plugins/s.py:f"}
    actions = plan(source=source, ops=[function], surgery=[], calibration={}, engines=[])
    export, reference = actions["export:net"], actions["reference:net"]
    assert export.options == {
        "source": {"onnx": "models/net.onnx"},
        "inputs": export.options["inputs"],
        "outputs": export.options["outputs"],
        "export": {"external_data": None, "random": None},
    }
    assert {*export.options["inputs"], *export.options["outputs"]} == {"x", "y"}
    assert (export.sources, reference.sources) == (
        ("models/net.onnx",),
        ("models/net.onnx", "data/x/"),
    )
    assert set(export.tools) == {"onnx", "onnxruntime"}
    assert export.code[1:] == ("buildsys.backends.onnxruntime.file_versions",)
    assert set(reference.tools) == {"numpy", "onnx", "onnxruntime", "pillow"}
    assert (export.environment, reference.environment) == ((), ("onnxruntime",))
    assert "origins" not in export.outputs
    assert export.after == reference.after == ("operators:net",)
    assert {*export.inputs} == {"functions"}
    assert reference.inputs == {"graph_functions": export.inputs["functions"]}
    plain = plan(source=source, ops=[], surgery=[], calibration={}, engines=[])
    assert plain["export:net"].after == plain["reference:net"].after == ()
    library = plan(source=source, surgery=[], calibration={}, engines=[])["reference:net"]
    assert library.options["operators"] == OPERATORS
    assert (library.after, {*library.inputs}) == (("operators:net",), {"library.b"})


@pytest.mark.parametrize(
    ("precision", "tool", "code", "roles"),
    [
        ("int8", "modelopt", ["convert.quantized"], {"ranges", "batches"}),
        ("int8", "builtin", ["convert.quantized"], {"ranges"}),
        ("fp16", "autocast", ["convert.typed", "convert.modelopt"], set()),
        ("fp16", "builtin", ["convert.typed"], set()),
    ],
)
def test_a_conversion_depends_on_its_tool(
    precision: str, tool: str, code: list[str], roles: set[str]
) -> None:
    section = "quantize" if precision == "int8" else "convert"
    convert = plan(**{section: {"tool": tool}})[f"convert:net:{precision}"]
    assert [module.removeprefix("buildsys.stages.") for module in convert.code[1:]] == code
    assert convert.inputs.keys() & {"ranges", "batches"} == roles
    assert ("nvidia-modelopt" in convert.tools) == (tool in ("modelopt", "autocast"))
    if precision == "int8":
        assert convert.options["quantize"]["tool"] == tool
        assert convert.options["quantize"]["algorithm"] == "entropy"


def test_a_network_on_the_gpu_changes_its_own_stages_only() -> None:
    there = plan(source={**MANIFEST["source"], "device": "cuda"})
    changed = {target for target, action in plan().items() if action != there[target]}
    benches = {f"bench:net:{name}" for name in ENGINES}
    assert changed == {"export:net", "reference:net", "report:net", *benches}
    for target in ("export:net", "reference:net"):
        assert there[target].options["source"]["device"] == "cuda"
        assert "gpu" in there[target].environment
        assert there[target].alone_on_gpu
    # PyTorch on the CPU cannot run it
    baselines = {name: there[f"bench:net:{name}"].options["bench"]["baselines"] for name in ENGINES}
    assert baselines == {"ort": ["onnxruntime"], "rtx": ["torch", "onnxruntime"],
                         "int8": ["onnxruntime"]}  # fmt: skip
    assert "network" not in there["bench:net:ort"].options


def test_surgery_depends_on_what_its_steps_load() -> None:
    hook = {
        "function": "plugins/a.py:f",
        "graph": "graphsurgeon",
        "inputs": {"w": {"shape": ["batch"], "data": {"images": "data/w"}}},
        "changes": "numbers",
        "reference": {"npz": "data/truth.npz"},
    }
    replacement = {
        "function": "plugins/ops/gelu.py:f",
        "changes": "numbers",
        "reference": {"python": "plugins/truth.py:f"},
    }
    steps = plan(surgery=[hook, replacement], calibration={}, engines=[])
    action = steps["surgery:net:after_export"]
    assert {"onnx-graphsurgeon", "pillow", "python"} <= set(action.tools)
    assert action.options["seed"] == 0
    assert action.sources == (
        "plugins/a.py",
        "data/truth.npz",
        "data/w/",
        "plugins/ops/gelu.py",
        "plugins/truth.py",
    )
    renamed = plan(surgery=[{"rename": {"y": "z"}}], calibration={}, engines=[])
    action = renamed["surgery:net:after_export"]
    assert set(action.tools) == {"onnx", "onnxruntime", "numpy"}
    assert action.options.keys() == {"steps", "inputs", "cases", "tolerance", "operators"}


BERT = {"transformers": "AutoModel", "checkpoint": "bert/"}


@pytest.mark.parametrize(
    ("source", "library", "files"),
    [
        ({"timm": "resnet18"}, "timm", []),
        ({"timm": "resnet18", "weights": {"file": "w.safetensors"}}, "timm", ["w.safetensors"]),
        ({"transformers": "AutoModel", "config": {"model_type": "bert"}}, "transformers", []),
        ({"transformers": "AutoModel", "config": "c.json"}, "transformers", ["c.json"]),
        ({"exported_program": "net.pt2"}, "exported_program", ["net.pt2"]),
        ({"transformers": "AutoModel", "checkpoint": f"hf://a/b@{'0' * 40}"}, "transformers", []),
        (
            BERT,
            "transformers",
            ["bert/config.json", "bert/model.safetensors", "bert/model.safetensors.index.json"],
        ),
    ],
)
def test_sources_of_libraries_have_their_files_and_versions_in_the_key(
    source: dict[str, Any], library: str, files: list[str]
) -> None:
    actions = plan(source=source)
    for target in ("export:net", "reference:net", "bench:net:ort"):
        action = actions[target]
        assert [*action.weights] == files
        assert library in action.tools or library == "exported_program"
        has_tensors = "checkpoint" in source or any("safetensors" in file for file in files)
        assert ("safetensors" in action.tools) is has_tensors
        assert f"buildsys.models.sources.{library}" in action.code
        assert "buildsys.models.sources.python" not in action.code


def test_engines_without_calibration_have_graphs_of_their_own() -> None:
    dynamic = {"precision": "int8", "quantization": "dynamic"}
    engines = [
        {"name": "fused", "optimized": True},
        {"name": "dynamic", **dynamic},
        {"name": "both", **dynamic, "optimized": True},
        {"name": "w4", "precision": "int4"},
    ]
    changes: dict[str, Any] = {
        "engines": [{"backend": "onnxruntime", **engine} for engine in engines],
        "optimize": {"model_type": "bert"},
        "quantize_weights": {"block_size": 64},
        "bench": {"baselines": []},
    }
    actions = plan(**changes)
    assert "calibrate:net" not in actions
    variants = {
        "fused": "optimized", "dynamic": "dynamic-int8", "both": "optimized-dynamic-int8",
        "w4": "int4",
    }  # fmt: skip
    for engine, variant in variants.items():
        assert f"convert:net:{variant}" in actions[f"engine:net:{engine}"].after
        convert = actions[f"convert:net:{variant}"]
        assert "buildsys.stages.convert.weights_only" in convert.code
        assert ("optimize" in convert.options) is ("optimized" in variant)
        assert ("quantize_weights" in convert.options) is (variant != "optimized")
    assert actions["convert:net:int4"].options["quantize_weights"] == {
        "block_size": 64, "symmetric": True, "accuracy_level": 0, "exclude": [],
    }  # fmt: skip
    changes["quantize_weights"] = {"block_size": 32}
    changed = plan(**changes)
    assert changed["convert:net:dynamic-int8"] == actions["convert:net:dynamic-int8"]
    assert changed["convert:net:int4"] != actions["convert:net:int4"]


def test_the_needs_of_an_engine_replace_those_of_the_model() -> None:
    engines = [{**engine} for engine in MANIFEST["engines"]]
    engines[0]["needs"] = {"gpu": "H100", "labels": ["lab"]}
    engines[1]["needs"] = {"compute_capability": "9.0", "count": 2}
    found = plan(needs={"memory": "64GiB"}, engines=engines)
    assert found["report:net"].needs == NO_NEEDS
    for target in ("export:net", "validate:net", "engine:net:int8", "bench:net:int8"):
        assert found[target].needs == Needs(memory=64 << 30)
    for stage in ("engine", "verify", "bench"):
        assert found[f"{stage}:net:ort"].needs == Needs(gpu="H100", gpu_count=1, labels=("lab",))
        assert found[f"{stage}:net:rtx"].needs == Needs(compute_capability="9.0", gpu_count=2)
    without = plan()
    assert {action.needs for action in without.values()} == {NO_NEEDS}
    assert [found[target].options for target in found] == [a.options for a in without.values()]


def test_an_engine_that_takes_any_size_knows_the_verified_ones() -> None:
    ranges = {"z": [[1, 8], 4]}
    assert plan()["engine:net:ort"].options["ranges"] == ranges
    assert "ranges" not in plan()["engine:net:rtx"].options  # it has profiles
    other = plan(dims={"batch": {"min": 1, "opt": 2, "max": 8}})
    assert other["engine:net:ort"].options["ranges"] == ranges
    even = plan(dims={"batch": {"min": 2, "opt": 4, "max": 8, "multiple_of": 2}})
    assert even["engine:net:ort"].options["ranges"] == {"z": [[2, 8, "batch", 2], 4]}
    assert even["engine:net:rtx"].options["dims"]["batch"]["multiple_of"] == 2
    fixed = plan(inputs={"x": {"shape": [2, 4], "data": {"images": "data/x"}}}, dims={})
    assert "ranges" not in fixed["engine:net:ort"].options
