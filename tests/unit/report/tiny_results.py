"""Result files of a small model, for tests to modify."""

import copy
import json
from pathlib import Path
from typing import Any

TOOLS = {"python": "3.12.7", "torch": "2.14.1", "onnx": "1.23.2", "onnxruntime": "1.31.1"}
LIMITS = {"rtol": 1e-4, "cosine": 0.9999, "atol": None, "top1": None}
SETTINGS = {"threads": 2, "device": {"kind": "cpu"}, "inputs": "on the device before the start"}


def compared(relative: float) -> dict[str, Any]:
    figures = {"max_abs": relative * 3, "relative": relative, "cosine": 1 - relative}
    return {**figures, "top1": 1.0, "passed": True}


def case_figures(*errors: float) -> dict[str, Any]:
    cases = zip(("min", "opt", "max", "odd"), errors, strict=False)
    return {case: {"scores": compared(error)} for case, error in cases}


def checked(*errors: float) -> dict[str, Any]:
    return {"cases": case_figures(*errors), "tolerance": LIMITS, "failures": []}


def contender(p50_ms: float, count: int = 150) -> dict[str, Any]:
    factors = {"mean": 1.02, "p50": 1, "p90": 1.1, "p95": 1.2, "p99": 1.4, "min": 0.9, "max": 1.5}
    return {
        **{f"{name}_ms": p50_ms * factor for name, factor in factors.items()},
        "samples_ms": [p50_ms] * count,
        "count": count,
        "throughput_per_s": 8000 / p50_ms,
    }


def bench(speedup: float | None, **p50_ms: float) -> dict[str, Any]:
    contenders = {name: contender(value) for name, value in p50_ms.items()}
    case = {"dims": {"batch": 8}, "batch": 8, "contenders": contenders, "speedup": speedup}
    return {"cases": {"opt": case}, "settings": SETTINGS}


EXPORTED = {"Conv": 2, "Relu": 2, "Shape": 2, "Slice": 2, "Concat": 1, "Reshape": 2, "Gemm": 2}
SIMPLIFIED = {"Conv": 2, "Relu": 2, "Shape": 1, "Concat": 1, "Reshape": 2, "Gemm": 2}

MANIFEST: dict[str, Any] = {
    "model": "tiny",
    "description": "Two convolutions | with batch norm",
    "source": {"python": "plugins/models/tiny.py:make", "seed": 0},
    "inputs": {"image": {"shape": ["batch", 3, 64, 64], "dtype": "float32"}},
    "outputs": {"scores": {"shape": ["batch", 10], "dtype": None}},
    "dims": {"batch": {"min": 1, "opt": 8, "max": 16, "multiple_of": 1}},
    "engines": [
        {"name": "ort-cpu", "backend": "onnxruntime", "precision": "fp32", "required": False},
        {"name": "rtx-fp16", "backend": "tensorrt_rtx", "precision": "fp16", "required": False},
    ],
}

PASSING: dict[str, dict[str, Any]] = {
    "export:tiny": {
        "exporter": "torchscript",
        "opset": 17,
        "ir_version": 8,
        "nodes": 13,
        "operators": EXPORTED,
        "parameters": 27_690,
        "bytes": 112_345,
        "sha256": "a" * 64,
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 64, 64]}],
        "outputs": [{"name": "scores", "dtype": "float32", "shape": ["batch", 10]}],
        "warnings": ["Converting a tensor to a Python <int> might cause the trace to be incorrect"],
    },
    "reference:tiny": {
        "cases": {
            case: {"dims": {"batch": n}, "inputs": {}, "outputs": {}}
            for case, n in (("max", 16), ("min", 1), ("odd", 3), ("opt", 8))
        },
        "weights": "drawn from seed 0, batch-norm statistics too",
    },
    "simplify:tiny": {
        "tool": "onnxsim",
        "before": {"nodes": 13, "operators": EXPORTED, "bytes": 112_345},
        "after": {"nodes": 10, "operators": SIMPLIFIED, "bytes": 111_900},
        "equal": {"opt": {"scores": compared(0.0)}},
    },
    "convert:tiny:fp16": {
        "precision": "fp16",
        "bytes_before": 111_900,
        "bytes_after": 57_000,
        **checked(2e-3, 3e-3, 2.5e-3, 2e-3),
    },
    "validate:tiny": {
        "graphs": {
            "exported": case_figures(3.1e-7, 4.4e-7, 5.12e-7, 4e-7),
            "simplified": case_figures(3.1e-7, 4.4e-7, 6.01e-7, 4e-7),
        },
        "tolerance": LIMITS,
        "failures": [],
    },
    "engine:tiny:ort-cpu": {
        "backend": "onnxruntime",
        "engine_sha256": "b" * 64,
        "engine_bytes": 118_000,
        "layers": {"Conv": 7},
        "build_seconds": 0.123,
        "messages": [],
        "device": {"kind": "cpu", "name": "AMD EPYC", "cores": 2},
    },
    "verify:tiny:ort-cpu": checked(1e-6, 2e-6, 3e-6, 1e-6),
    "bench:tiny:ort-cpu": {
        **bench(2.0, torch=4.2, engine=2.1),
        "interleaving": "blocks of the engine and of torch in turn",
        "cpu": "AMD EPYC, 2 cores",
    },
    "engine:tiny:rtx-fp16": {
        "backend": "tensorrt_rtx",
        "engine_sha256": "c" * 64,
        "engine_bytes": 535_000,
        "layers": {"convolution": 9, "shuffle": 40},
        "build_seconds": 4.2,
        "messages": ["Using default for use_trt | see docs"],
        "device": {"kind": "gpu", "missing": "libcuda.so.1 is not installed"},
        "built_with": {"tensorrt_rtx": "1.7.1.116", "platform": "Linux x86_64"},
        "precision_shares": {"layers": {"float16": 0.9, "float32": 0.1}},
        "operators": {
            "demo::swish": "plugin swish_plugin.py",
            "demo::clip": "library clip.so",
            "trt::Nms": "plugin",
        },
        "profiles": [
            {"image": {"min": [1, 3], "opt": [8, 3], "max": [16, 3]}},
            {"image": {"min": [1, 3], "opt": [1, 3], "max": [1, 3]}},
        ],
        "phases": {"prepare": 0.1, "build": 4.0, "read_back": 0.1},
    },
    "verify:tiny:rtx-fp16": checked(1e-3, 1e-3),
    "bench:tiny:rtx-fp16": bench(None, engine=0.2),
}
NO_GPU = (
    "no NVIDIA GPU was found (libcuda.so.1 is not installed)",
    "run it on a machine with an RTX GPU and its driver",
)
_FILES = {
    "export": "export/export.json",
    "reference": "reference/reference.json",
    "simplify": "simplify/graph.json",
    "validate": "validate/result.json",
}


def result_path(build: Path, target: str) -> Path:
    stage, model, *variant = target.split(":")
    name = variant[0] if variant else ""
    by_variant = {"convert": f"convert/{name}/convert.json", "engine": f"engine/{name}/engine.json"}
    return build / model / (_FILES.get(stage) or by_variant.get(stage) or f"{stage}/{name}.json")


class Results:
    """The results of a build in a folder. Every change rewrites its file."""

    def __init__(self, build: Path) -> None:
        self.build = build
        self.manifest = copy.deepcopy(MANIFEST)
        self.inputs = {target: result_path(build, target) for target in PASSING}
        for target in PASSING:
            self.passed(target)

    def passed(self, target: str, **figures: Any) -> None:
        self.write(target, {"status": "passed", **copy.deepcopy(PASSING[target]), **figures})

    def unavailable(self, target: str) -> None:
        self.write(target, {"status": "unavailable", "reason": NO_GPU[0], "hint": NO_GPU[1]})

    def failed(self, target: str, reason: str, **figures: Any) -> None:
        content = {"status": "failed", "reason": reason, **copy.deepcopy(PASSING[target])}
        self.write(target, {**content, **figures})

    def write(self, target: str, content: dict[str, Any]) -> None:
        stage, model, *variant = target.split(":")
        header = {"schema": "buildsys/result/1", "target": target, "stage": stage, "model": model}
        times = {"started": "2026-11-03T10:00:00Z", "seconds": 1.5, "toolchain": TOOLS}
        texts = {"variant": "".join(variant), "reason": "", "hint": ""}
        path = self.inputs[target]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**header, **times, **texts, **content}))

    def with_doubts(self) -> None:
        self.manifest = {**self.manifest, "validate": {"accepted": ["net.py:8"]}}
        branches = [
            {"kind": "branch", "text": "it decides", "place": place}
            for place in ("net.py:8", "net.py:12", "net.py:12")
        ]
        self.passed("export:tiny", doubts=branches)
        state = {"kind": "state", "text": "it keeps state", "place": "net.py:20"}
        lacking = {"kind": "weights", "text": "the file lacks it", "place": "head.bias"}
        self.passed("reference:tiny", doubts=[state, lacking])
        left_out = {"kind": "uncompared", "text": "not compared", "place": "drawn-1"}
        zero = {"kind": "output", "text": "it is zero everywhere", "place": "scores"}
        for target in ("validate:tiny", "verify:tiny:ort-cpu"):
            self.passed(target, doubts=[left_out, zero])

    def without_gpu(self) -> None:
        self.unavailable("verify:tiny:rtx-fp16")
        self.unavailable("bench:tiny:rtx-fp16")
