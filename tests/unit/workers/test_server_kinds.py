from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job
from buildsys.workers.server_kinds import LIGHT, TORCH, late_preload, server_kind_of


def _job(stage: str, **options: Any) -> Job:
    return Job(f"{stage}:m", stage, "m", "", options, {}, {}, Path())


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (_job("export", source={"torchvision": "resnet18"}), "torch"),
        (_job("export", source={"onnx": "given.onnx"}), "light"),
        (_job("reference", source={"python": "net.py:make"}), "torch"),
        (_job("reference", source={"onnx": "given.onnx"}), "light"),
        (_job("bench", network={}), "torch"),
        (_job("bench"), "light"),
        (_job("simplify"), "light"),
        (_job("convert"), "light"),
        (_job("convert", tool="autocast"), "torch"),
        (_job("convert", quantize={"tool": "modelopt"}), "torch"),
        (_job("convert", quantize={"tool": "onnxruntime"}), "light"),
        (_job("calibrate"), "light"),
        (_job("validate"), "light"),
        (_job("engine", engine={"backend": "onnxruntime"}), "light"),
        (_job("verify", engine={"backend": "openvino"}), "light"),
        (_job("engine", engine={"backend": "coreml"}), "torch"),
        (_job("engine", engine={"backend": "executorch"}), "torch"),
        (_job("verify", engine={"backend": "executorch"}), "torch"),
        (_job("program", source={"torchvision": "resnet18"}), "torch"),
        (_job("report"), "light"),
        (_job("buildsys.stages.validate.stress", source={"python": "net.py:make"}), "torch"),
        (_job("buildsys.stages.validate.stress", source={"onnx": "given.onnx"}), "light"),
        (_job("buildsys.stages.run.labels", weights=["ResNet18_Weights.DEFAULT"]), "torch"),
        (_job("buildsys.stages.run.inputs"), "bare"),
        (_job("team.stages.prune"), "bare"),
    ],
)
def test_each_stage_has_its_kind_of_server(job: Job, name: str) -> None:
    assert server_kind_of(job).name == name


def test_the_light_server_hides_what_onnxsim_imports_without_need() -> None:
    assert set(LIGHT.without) == {"torch", "sympy"}
    assert not [name for name in LIGHT.preload if name.partition(".")[0].startswith("torch")]
    assert TORCH.preload[0] == "torch"


def test_only_dynamo_exports_load_dynamo() -> None:
    stage = "buildsys.stages.export.stage"
    assert late_preload(_job("export", export={"exporter": "torchscript"})) == (stage,)
    first, *rest = late_preload(_job("export", export={"exporter": "dynamo"}))
    assert first == stage and "torch.export._trace" in rest
    assert all(importlib.util.find_spec(name) for name in rest if name.startswith("buildsys"))


def test_the_module_of_a_stage_is_loaded_into_its_server() -> None:
    assert late_preload(_job("simplify", simplify={})) == ("buildsys.stages.simplify.stage",)


def test_a_backend_is_loaded_where_its_libraries_are() -> None:
    engine = {"backend": "onnxruntime"}
    backend = "buildsys.backends.onnxruntime.backend"
    assert late_preload(_job("verify", engine=engine)) == ("buildsys.stages.verify.stage", backend)
    assert late_preload(_job("bench", engine=engine)) == ("buildsys.stages.bench.stage", backend)
    engine = {"backend": "tensorrt_rtx"}
    assert late_preload(_job("verify", engine=engine))[1:] == (
        "buildsys.backends.tensorrt_rtx.backend",
    )
    for name in ("tensorrt", "openvino", "of_another_package"):  # loaded by the child alone
        assert late_preload(_job("engine", engine={"backend": name})) == (
            "buildsys.stages.engine.stage",
        )
    toolchain = Toolchain("other", Path("/envs/other/bin/python"), {})
    job = replace(_job("engine", engine=engine), toolchain=toolchain)
    assert late_preload(job) == ("buildsys.stages.engine.stage",)


def test_a_stage_of_another_package_is_loaded_by_its_child() -> None:
    assert late_preload(_job("team.stages.prune")) == ()
