"""All that gates, reports, exports, operators and calibrations are planned with."""

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action, FileRef
from buildsys.stages.export.plan import DYNAMO_MODULES

ENGINES = [{"backend": "onnxruntime", "name": name} for name in ("ort", "fast")]
SIZES = {"min": 1, "max": 4, "multiple_of": 1}
TORCH = ("python", "torch", "numpy", "torchvision")


def plan(toolchains: dict[str, Any] | None = None, **sections: Any) -> dict[str, Action]:
    manifest = {
        "model": "net",
        "source": {"torchvision": "resnet18"},
        "inputs": {"x": {"shape": ["batch", 3, 8, 8]}},
        "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
        "engines": ENGINES,
    }
    return plan_of(manifest | sections, toolchains=toolchains)


def test_a_gate_with_another_engine_as_its_baseline() -> None:
    gates = {"latency": {"tolerance": "5%"}, "build_time": {"limit": "3s"},
             "error": {"tolerance": "5%"}}  # fmt: skip
    planned = plan(gates={"engine": "fast", **gates}, bench={"cases": ["min"], "baselines": []})
    gate, engine = planned["gate:net:ort"], planned["engine:net:ort"]
    assert {role: ref.path for role, ref in gate.inputs.items()} == {
        "engine": "net/engine/ort/engine.onnx",
        "engine.data": "net/engine/ort/engine.onnx.data",
        "built": "net/engine/ort/engine.json",
        "verified": "net/verify/ort.json",
        "case.min": "net/reference/min.npz",
        "baseline.engine": "net/engine/fast/engine.onnx",
        "baseline.engine.data": "net/engine/fast/engine.onnx.data",
        "baseline.built": "net/engine/fast/engine.json",
        "baseline.verified": "net/verify/fast.json",
    }
    assert set(gate.after) == {
        "reference:net", *(f"{s}:net:{e['name']}" for s in ("engine", "verify") for e in ENGINES)
    }  # fmt: skip
    other = planned["bench:net:fast"].options["engine"]
    assert gate.options["baseline"] == {"name": "fast", "engine": other}
    assert (gate.options["case"], gate.order, gate.server) == ("min", (), "light")
    assert engine.server == "light"


def test_a_gate_without_errors_runs_after_a_check_but_does_not_need_it() -> None:
    gate = plan(gates={"size": {"limit": "1MB"}})["gate:net:ort"]
    assert (gate.after, gate.order) == (("engine:net:ort",), ("verify:net:ort",))
    assert "case" not in gate.options
    assert set(gate.inputs) == {"engine", "engine.data"}
    timed = plan(gates={"latency": {"limit": "1s"}}, bench={"cases": ["max", "opt"]})
    assert timed["gate:net:ort"].options["case"] == "opt"
    assert set(timed["gate:net:ort"].inputs) == {"engine", "engine.data", "case.opt"}


def test_a_report_has_what_decides_results_and_draws_both_graphs() -> None:
    command = {"name": "c", "run": "true", "outputs": {"o": "o"}, "needs": {"gpu": "A100"}}
    engines = [{**ENGINES[0], "needs": {"gpu": "A100"}, "toolchain": "old"},
               {**ENGINES[1], "precision": "auto-fp16"}]  # fmt: skip
    tools = {"old": {"python": "/opt/bin/python", "env": {"A": "1"}}}
    report = plan(tools, engines=engines, commands=[command], tags=["t"])["report:net"]
    manifest = report.options["manifest"]
    assert [engine.get("precision") for engine in manifest["engines"]] == ["fp32", "auto-fp16"]
    assert not any({"auto", "needs"} & engine.keys() for engine in manifest["engines"])
    assert manifest["toolchains"] == {"old": {"env": {"A": "1"}}}
    assert manifest["commands"][0]["name"] == "c"
    assert "needs" not in manifest["commands"][0]
    assert manifest["tags"] == ["t"]
    assert not {"timeout", "needs", "owner", "symbolics", "gates", "surgery"} & manifest.keys()
    assert {"export", "verify", "bench", "convert"} <= manifest.keys()
    pictures = {"exported": "export:net", "simplified": "simplify:net"}
    assert report.options["pictures"] == pictures
    for title in pictures:
        file = FileRef(f"net/report/{title}.svg", optional=True)
        assert report.outputs[f"picture.{title}"] == file
    assert (report.tools, report.probes) == (("onnx",), (("dot", "-V"),))
    plain = plan(report={"formats": ["json"]})["report:net"]
    assert (plain.options["pictures"], plain.probes, set(plain.outputs)) == ({}, (), {"result"})
    assert not {"toolchains", "commands", "tags"} & plain.options["manifest"].keys()


@pytest.mark.parametrize(
    ("sections", "tools", "sources", "preload"),
    [
        (
            {
                "export": {"exporter": "dynamo", "opset": 18},
                "translations": [{"op": "a::b", "function": "plugins/t.py:f"}],
            },
            (*TORCH, "onnx", "onnxscript", "onnx-ir", "sympy"),
            ("plugins/t.py",),
            DYNAMO_MODULES,
        ),
        (
            {"symbolics": [{"module": "s.py"}, {"op": "a::b", "function": "plugins/t.py:f"}]},
            (*TORCH, "onnx"),
            ("s.py", "plugins/t.py"),
            (),
        ),
        ({"source": {"onnx": "make.py:f"}}, ("python", "numpy", "onnx", "onnxruntime"),
         ("make.py",), ()),
        ({"source": {"onnx": "net.onnx"}}, ("onnx", "onnxruntime"), ("net.onnx",), ()),
    ],
)  # fmt: skip
def test_an_export(sections: Any, tools: Any, sources: Any, preload: Any) -> None:
    export = plan(**sections)["export:net"]
    assert (export.tools, export.sources, export.preload) == (tools, sources, preload)
    has_ranges = "translations" in sections
    assert export.options.get("ranges") == ({"batch": SIZES} if has_ranges else None)
    if "source" in sections:
        made = {"seed": 0, "kwargs": {}} if ".py:" in sections["source"]["onnx"] else {}
        assert export.options["source"] == {**sections["source"], **made}


def test_operators_are_compiled_by_the_compilers_of_their_files() -> None:
    library = {"sources": ["k.cpp", "g.c"], "flags": ["-O2", "-march=native"]}
    own = {"op": "a::b", "library": library}
    others = [{"op": "a::c", "library": {"file": "p.so"}}, {"op": "a::d", "function": "fn.py:f"}]
    operators = plan(ops=[own, *others])["operators:net"]
    assert set(operators.sources) == {"fn.py", "k.cpp", "g.c", "p.so"}
    assert operators.tools[:2] == ("python", "onnx")
    assert len(operators.tools) == 4
    assert operators.devices == ("cpu",)
    assert operators.options["functions"] == {"functions": {"a::d": "fn.py:f"}}
    assert len(operators.options["libraries"]) == 2
    portable = {**own, "library": {**library, "flags": ["-O2"]}}
    assert plan(ops=[portable])["operators:net"].devices == ()


def test_a_calibration_with_data_of_its_own() -> None:
    inputs = {"x": {"shape": ["batch", 3, 8, 8], "data": {"python": "d.py:f"}},
              "m": {"shape": [4]}}  # fmt: skip
    section = {"algorithm": "percentile", "percentile": 99.9, "batch_size": 3, "batches": 2}
    engines = [{"backend": "onnxruntime", "name": "q", "precision": "int8"}]
    planned = plan(inputs=inputs, engines=engines, calibration=section)["calibrate:net"]
    assert planned.options["dims"] == {"batch": 3}
    assert planned.options["calibration"] == {
        "algorithm": "percentile", "percentile": 99.9, "batches": 2, "seed": 0,
        "data": {"x": {"python": "d.py:f"}, "m": None},
    }  # fmt: skip
    assert (planned.sources, "python" in planned.tools) == (("d.py",), True)
    own = plan(inputs=inputs, engines=engines, calibration={"data": {"x": {"npz": "c.npz"}}})
    assert own["calibrate:net"].options["calibration"]["data"]["x"] == {"npz": "c.npz", "key": None}
    assert "percentile" not in own["calibrate:net"].options["calibration"]
    assert "python" not in own["calibrate:net"].tools
