"""The bench stage: an engine and its baselines, measured in turns."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from engine_jobs import BATCHES, random_x, resolved, save_at, stage_job, write_golden
from small_graphs import conv_bn, parse

from buildsys.backends.cuda_gpus import find_driver
from buildsys.backends.measurement import LocalCall
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import save_case
from buildsys.report import result_files
from buildsys.stages.bench import stage as bench
from buildsys.stages.bench.machine import measure_machine
from buildsys.stages.bench.result import BenchResult
from buildsys.stages.engine import stage as engine
from buildsys.stages.surgery.edits import rename
from buildsys.system.cpu import usable_cores
from buildsys.system.toolchains import Toolchain
from buildsys.workers.job import StageResult

INPUTS = {case: random_x(batch) for case, batch in BATCHES.items()}
ORT = {"backend": "onnxruntime"}
QUICK = {"duration": 0.05, "warmup": 0.01, "min_samples": 5, "noise": None, "cold_start": 0}
IF_LONG = pytest.mark.skipif(
    os.environ.get("BUILDSYS_LONG_TESTS", "0") in ("", "0"),
    reason="compiles for seconds; run with BUILDSYS_LONG_TESTS=1",
)
NET = """
import torch

class Slow(torch.nn.Module):
    def forward(self, x):
        assert torch.is_inference_mode_enabled() and not self.training
        for _ in range(200):
            x = x * 1.0
        return x.flatten(1)[:, :5]
"""


def benched(
    build: Path,
    engine_fields: Mapping[str, Any] = ORT,
    *,
    net: str = "",
    graph: onnx.ModelProto | None = None,
    said: list[str] | None = None,
    toolchain: Toolchain | None = None,
    precision: str = "fp32",
    **sections: Any,
) -> StageResult:
    """Benchmark the engine of a graph, perhaps next to a network with the code ``net``.

    ``precision`` sets the PyTorch network's; benchmarks on a CPU are planned with fp32.
    """
    if net:
        (build / "net.py").write_text(net)
        sections["source"] = {"python": "net.py:Slow"}
    bench_section = {**QUICK, **sections.pop("bench", {})}
    spec = resolved(engine_fields, bench=bench_section, **sections)
    write_golden(build, {case: {} for case in INPUTS}, INPUTS)
    file = save_at(build / "m/simplify/model.onnx", graph or conv_bn())
    built = engine.run(stage_job(spec, "engine", build, file))
    assert built.status == "passed"
    record = {"backend": engine_fields["backend"], **built.figures}
    (build / "m/engine/e/engine.json").write_text(json.dumps(record))
    job = replace(stage_job(spec, "bench", build), toolchain=toolchain)
    job.options["bench"]["precision"] = precision
    return bench.run(job if said is None else replace(job, progress=said.append))


def test_an_engine_whose_outputs_change_during_the_benchmark_fails(tmp_path: Path) -> None:
    text = """(float[batch,3,8,8] x) => (float[batch,3,8,8] y) {
        noise = RandomNormalLike <scale = 0.1> (x) y = Add (x, noise) }"""
    result = benched(tmp_path, graph=parse(text))
    assert result.status == "failed"
    assert "between the first and the last call, output 'y' changes: at [" in result.reason
    assert result.figures["cases"]


def test_an_engine_and_pytorch_are_measured_in_turns(tmp_path: Path) -> None:
    said: list[str] = []
    result = benched(tmp_path, net=NET, said=said)
    assert result.status == "passed"
    texts = ["timing case opt", "timing the engine's layers", "measuring the machine"]
    assert said[-3:] == texts
    assert result.figures["machine"] == {"missing": ["bench.duration is shorter than 0.1 s"]}
    assert json.loads(json.dumps(result.figures)) == result.figures
    (case,) = result.figures["cases"].values()
    assert case["dims"] == {"batch": 2}
    assert case["batch"] == 2
    assert set(case["contenders"]) == {"engine", "torch"}
    for contender in case["contenders"].values():
        assert contender["count"] == len(contender["samples_ms"]) >= 5
        assert sum(contender["samples_ms"]) >= 50
        assert contender["p50_ms"] == pytest.approx(
            float(np.percentile(contender["samples_ms"], 50))
        )
        assert contender["throughput_per_s"] == pytest.approx(2000 / contender["mean_ms"])
        assert (
            contender["min_ms"] <= contender["p50_ms"] <= contender["p90_ms"] <= contender["p99_ms"]
        )
        assert contender["noisy"].startswith("it was timed too briefly")
    assert case["speedup"] is None
    assert "engine, torch in turns of at least 50 ms" in result.figures["interleaving"]


@pytest.mark.filterwarnings("ignore")  # what PyTorch says about its own compiler
@pytest.mark.parametrize("compiled", [(), pytest.param(("torch_compile",), marks=IF_LONG)])
def test_pytorch_and_onnxruntime_are_baselines_on_the_cpu(
    tmp_path: Path, compiled: tuple[str, ...]
) -> None:
    baselines = ("torch", "torch_cuda_graph", *compiled, "onnxruntime")
    fields = {"backend": "onnxruntime", "graph_optimization_level": "disable"}
    net = NET.replace("range(200)", "range(2)")
    figures = benched(tmp_path, fields, net=net, bench={"baselines": baselines}).figures
    asked = {"engine", "torch", *compiled, "onnxruntime"}  # a CUDA graph is nothing for a CPU
    assert set(figures["cases"]["opt"]["contenders"]) == asked, figures.get("left_out")


def test_networks_with_weights_of_volumes_are_baselines_in_low_precision(tmp_path: Path) -> None:
    net = NET.replace("range(200)", "range(2)").replace(
        "    def forward",
        """\
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv3d(1, 1, 1)

    def forward""",
    )
    figures = benched(tmp_path, net=net, bench={"baselines": ("torch",)}, precision="bf16").figures
    assert figures["cases"]["opt"]["contenders"].keys() == {"engine", "torch"}


def test_a_baseline_that_cannot_run_is_left_out_with_its_reason(tmp_path: Path) -> None:
    spec = resolved(ORT, bench={**QUICK, "baselines": ("onnxruntime",)})
    write_golden(tmp_path, {case: {} for case in INPUTS}, INPUTS)
    good = save_at(tmp_path / "m/simplify/model.onnx", conv_bn())
    assert engine.run(stage_job(spec, "engine", tmp_path, good)).status == "passed"
    good.write_bytes(b"no graph at all")
    figures = bench.run(stage_job(spec, "bench", tmp_path)).figures
    assert set(figures["cases"]["opt"]["contenders"]) == {"engine"}
    assert "ONNX Runtime cannot load the graph" in figures["left_out"]["onnxruntime"]


@pytest.mark.skipif(find_spec("torch_tensorrt") is not None, reason="Torch-TensorRT is installed")
def test_torch_tensorrt_is_left_out_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buildsys.plan.model_plan._GPU_BASELINES", ())  # planned without a GPU, too
    figures = benched(tmp_path, net=NET, bench={"baselines": ("torch_tensorrt",)}).figures
    assert set(figures["cases"]["opt"]["contenders"]) == {"engine"}
    reason = figures["left_out"]["torch_tensorrt"]
    assert reason == (
        "Torch-TensorRT cannot be imported: No module named 'torch_tensorrt';"
        " `pip install torch-tensorrt`"
    )


def test_pytorch_gets_the_inputs_from_before_surgery(tmp_path: Path) -> None:
    (tmp_path / "m/surgery/after_export").mkdir(parents=True)
    for case, inputs in INPUTS.items():
        save_case(tmp_path / f"m/surgery/after_export/{case}.npz", {"image": inputs["x"]}, {})
    step = {"rename": {"x": "image"}}
    graph = rename(conv_bn(), step)
    figures = benched(tmp_path, net=NET, graph=graph, surgery=[step]).figures
    assert set(figures["cases"]["opt"]["contenders"]) == {"engine", "torch"}
    assert figures["settings"]["torch"] == "is the network before surgery, with its own inputs"


def test_every_case_is_measured_and_the_machine_and_the_settings_are_recorded(
    tmp_path: Path,
) -> None:
    fields = {"backend": "onnxruntime", "intra_op_threads": 1, "spinning": False}
    figures = benched(tmp_path, fields, bench={"cases": ("min", "max")}).figures
    assert {name: case["batch"] for name, case in figures["cases"].items()} == {"min": 1, "max": 8}
    for case in figures["cases"].values():
        assert (set(case["contenders"]), case["speedup"]) == ({"engine"}, None)
    assert figures["cpu"]
    assert figures["settings"]["threads"] == 1
    assert figures["settings"]["spinning"] is False
    assert figures["settings"]["device"]["kind"] == "cpu"
    assert 0 <= figures["load"]["others_share"] <= 1
    assert all(isinstance(note, str) for note in figures["noisy"])
    layers = figures["slowest_layers"]
    assert "Conv" in {layer["kind"] for layer in layers}
    assert sum(layer["share"] for layer in layers) == pytest.approx(1, abs=0.01)
    times = [layer["time_ms"] for layer in layers]
    assert times == sorted(times, reverse=True)
    assert {layer["precision"] for layer in layers} == {"float32"}


def test_pytorch_uses_as_many_threads_as_the_engine(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads()
    fields = {"backend": "onnxruntime", "intra_op_threads": usable_cores() + 1}
    count = usable_cores() + 1
    net = NET.replace("for _", f"assert torch.get_num_threads() == {count}\n        for _")
    assert benched(tmp_path, fields, net=net).status == "passed"
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("toolchain", [None, Toolchain("other", Path(sys.executable), {})])
def test_fresh_processes_load_and_call_the_engine(
    tmp_path: Path, toolchain: Toolchain | None
) -> None:
    result = benched(tmp_path, bench={"cold_start": 2, "baselines": ()}, toolchain=toolchain)
    figures = result_files.parse(dict(result.figures), BenchResult)["cold_start"]
    figures.pop("noisy", None)
    assert {len(values) for values in figures.values()} == {2}
    assert min(figures["imports_ms"] + figures["load_ms"] + figures["first_call_ms"]) > 0
    if sys.platform == "linux":
        sizes = ("imports_bytes", "loaded_bytes", "peak_bytes")
        assert 1e7 < figures[sizes[0]][0] < figures[sizes[1]][0] <= figures[sizes[2]][0]


def test_the_processor_is_measured_with_the_threads_of_the_engine(tmp_path: Path) -> None:
    quick = {"duration": 0.1, "baselines": ()}
    result = benched(tmp_path, {**ORT, "intra_op_threads": 1}, bench=quick)
    machine = result_files.parse(dict(result.figures), BenchResult)["machine"]
    assert (machine["threads"], machine["macs_type"]) == (1, "float32")
    assert 1e8 < machine["macs_per_s"] < 1e12
    assert 1e8 < machine["bytes_per_s"] < 1e12


@pytest.mark.parametrize(
    ("kind", "reason"), [("cpu", "the processor was not measured"), ("xpu", "is neither")]
)
def test_a_machine_that_cannot_be_measured_has_a_reason(kind: str, reason: str) -> None:
    (missing,) = measure_machine(kind, {}, 0, {**QUICK, "duration": 1.0})["missing"]
    assert reason in missing


def test_a_processor_that_others_use_is_not_measured() -> None:
    bench_section = {"duration": 0.1, "noise": {"other_load": 0.1}}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (missing,) = measure_machine("cpu", {}, 1, bench_section)["missing"]
    finally:
        busy.kill()
        busy.wait()
    assert re.search(r"other processes used \d+ % of the processors", missing)


def test_an_engine_that_load_engine_refuses_has_a_reason(tmp_path: Path) -> None:
    benched(tmp_path)
    spec = resolved(ORT, bench={**QUICK, "cold_start": 2, "baselines": ()})
    (tmp_path / "m/engine/e/engine.json").write_text("{}")
    result = bench.run(stage_job(spec, "bench", tmp_path))
    assert result.status == "passed"
    assert "is not the record of an engine" in result.figures["cold_start"]["problem"]


def test_a_baseline_that_rejects_the_inputs_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"forward of Slow failed on x float32 \[2, 3, 8, 8\]"):
        benched(tmp_path, net=NET.replace("x * 1.0", "x @ x[:, :, :3]"))


def test_a_noisy_case_is_repeated_within_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([["a neighbor", "throttled"], ["a neighbor"], []])
    monkeypatch.setattr(bench, "noise", lambda *_: next(found))
    said: list[str] = []
    result = benched(tmp_path, bench={"noise": {}, "budget": 60}, said=said)
    assert (result.status, result.figures["noisy"]) == ("passed", [])
    assert result.figures["cases"]["opt"]["attempts"] == 3
    timing = [line for line in said if line.startswith("timing case")]
    number, rest = r"(\d)", r"\d\d s of 60 s left"
    again = [
        re.fullmatch(f"timing case opt, attempt {number}, {rest}: a neighbor", line)
        for line in timing[1:]
    ]
    assert [match and match[1] for match in again] == ["2", "3"]


def test_a_case_that_stays_noisy_has_the_steadiest_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "noise", lambda *_: ["a neighbor", "throttled"])
    result = benched(tmp_path, bench={"noise": {}, "budget": 1e-3})
    assert (result.status, result.reason) == ("noisy", "a neighbor (and 1 more)")
    assert result.figures["cases"]["opt"]["noisy"] == ["a neighbor", "throttled"]
    assert result.figures["cases"]["opt"]["attempts"] == 1


def test_what_the_budget_has_no_time_for_is_left_out_or_noisy(tmp_path: Path) -> None:
    net = NET.replace("for _", "__import__('time').sleep(1)\n        for _")
    steady = {"noise": {"other_load": None}, "duration": 5}
    result = benched(tmp_path, net=net, bench={**steady, "budget": 0.6})
    reason = "the 300 ms to prepare baselines are used up: raise bench.budget"
    assert result.figures["left_out"] == {"torch": reason}
    case = result.figures["cases"]["opt"]
    assert 0 < case["cut_to_s"] < 1
    assert case["contenders"]["engine"]["count"] >= QUICK["min_samples"]
    assert (result.status, case["attempts"]) == ("noisy", 1)
    assert "it was timed too briefly" in result.reason


def test_graphs_are_captured_after_compilers_even_if_these_take_all_the_time(
    tmp_path: Path,
) -> None:
    bound: list[str] = []

    def binding(name: str, seconds: float) -> bench.Bind:
        def bind(_: object) -> LocalCall:
            bound.append(name)
            time.sleep(seconds)
            return LocalCall(list)

        return bind

    baselines = bench.Baselines(
        {
            "torch_compile": binding("torch_compile", 60),
            "torch_cuda_graph": binding("torch_cuda_graph", 0.5),
            "torch": binding("torch", 0),
        }
    )
    save_case(tmp_path / "case.npz", random_x(1), {})
    contenders = baselines.bind(tmp_path / "case.npz", tmp_path / "case.npz", 0.3)
    assert bound == ["torch", "torch_compile", "torch_cuda_graph"]
    assert (contenders.keys(), baselines.left_out.keys()) == (
        {"torch", "torch_cuda_graph"},
        {"torch_compile"},
    )


def test_without_an_engine_the_bench_is_unavailable(tmp_path: Path) -> None:
    write_golden(tmp_path, {case: {} for case in INPUTS}, INPUTS)
    result = bench.run(stage_job(resolved(ORT), "bench", tmp_path))
    assert result.status == "unavailable"
    assert "there is no engine: see the result" in result.reason


@pytest.mark.skipif(
    bool(find_driver().gpus), reason="checks what is said on a machine without a GPU"
)
def test_an_engine_that_cannot_run_here_is_not_measured(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    result = benched(tmp_path, {"backend": "tensorrt_rtx"})
    assert (result.status, result.figures) == ("unavailable", {})
    assert "no NVIDIA driver is installed" in result.reason
