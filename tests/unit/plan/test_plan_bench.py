"""Plan of the bench stage: options, inputs and dependencies of each engine."""

from typing import Any

import pytest
from planning import plan_of

from buildsys.plan.action import Action

ORT = {"backend": "onnxruntime", "name": "ort", "precision": "fp16"}
CUDA = {"backend": "onnxruntime", "name": "cuda", "provider": "cuda", "precision": "fp16"}
TRT = {"backend": "tensorrt", "name": "trt", "precision": "fp16", "typing": "weak"}
MANIFEST: dict[str, Any] = {
    "model": "net",
    "source": {"torchvision": "resnet18"},
    "inputs": {"x": {"shape": ["batch", 3, 8, 8]}},
    "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
    "engines": [ORT, CUDA, TRT],
}
NOISE = {"interval": 0.05, "other_load": 0.1, "throttling": 0.0}
PACE = {
    "duration": 3.0,
    "warmup": 0.2,
    "min_samples": 10,
    "budget": 90.0,
    "noise": NOISE,
    "cold_start": 3,
}


def plan(**bench: Any) -> dict[str, Action]:
    return plan_of({**MANIFEST, "bench": bench})


def test_an_engine_on_a_cpu_has_no_gpu_options() -> None:
    assert plan()["bench:net:ort"].options["bench"] == {**PACE, "baselines": ["torch"]}
    changed = plan(cuda_graph=(False, True), transfers="both", in_flight=4, wait="block")
    assert changed["bench:net:ort"].options == plan()["bench:net:ort"].options


def test_each_engine_gets_the_options_it_supports() -> None:
    asked = ("torch", "torch_cuda_graph", "torch_compile", "torch_tensorrt", "onnxruntime")
    planned = plan(baselines=asked, cuda_graph=True, in_flight=2)
    on_cpu, by_ort, by_gpu = (
        planned[f"bench:net:{name}"].options["bench"] for name in ("ort", "cuda", "trt")
    )
    assert on_cpu["baselines"] == ["torch", "torch_compile", "onnxruntime"]
    assert "precision" not in on_cpu
    assert by_ort["baselines"] == by_gpu["baselines"] == list(asked)
    assert (by_ort["precision"], by_gpu["precision"]) == ("fp16", "fp16")
    assert "gpu" not in on_cpu
    assert "gpu" not in by_ort
    assert by_gpu["gpu"] == {
        "cuda_graph": [True],
        "transfers": "none",
        "in_flight": 2,
        "wait": "spin",
    }


def test_onnxruntime_reads_the_graph_of_the_precision() -> None:
    assert "model" not in plan()["bench:net:trt"].inputs
    planned = plan(baselines=("onnxruntime",))
    assert planned["bench:net:trt"].inputs["model"].path == "net/convert/fp16/model.onnx"
    assert "convert:net:fp16" in planned["bench:net:trt"].after
    assert planned["bench:net:ort"].inputs["model"].path == "net/simplify/model.onnx"
    assert "simplify:net" in planned["bench:net:ort"].after
    assert "network" not in planned["bench:net:trt"].options


@pytest.mark.parametrize(
    ("name", "measures", "exclusive", "alone_on_gpu"),
    [
        ("bench:net:ort", True, True, False),
        ("bench:net:trt", True, False, True),
        ("bench:net:cuda", True, False, True),
        ("engine:net:trt", False, False, True),
        ("verify:net:trt", False, False, True),
        ("engine:net:ort", False, False, False),
        ("export:net", False, False, False),
    ],
)
def test_benchmarks_run_alone_on_their_device(
    name: str, measures: bool, exclusive: bool, alone_on_gpu: bool
) -> None:
    action = plan()[name]
    assert (action.measures, action.exclusive, action.alone_on_gpu) == (
        measures,
        exclusive,
        alone_on_gpu,
    )
