"""Real engines with their records, and changes of them."""

import json
import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import resolved, save_at, stage_job
from onnx import ModelProto
from small_graphs import conv_bn

from buildsys.deploy.can_run import CompatibilityResult
from buildsys.stages.engine import stage as engine
from buildsys.system import devices
from buildsys.workers.result_file import write_result

H200 = {
    "name": "NVIDIA H200",
    "compute_capability": "9.0",
    "driver": "580.95",
    "cuda_driver": "13.0",
}
RTX4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "compute_capability": "8.9",
    "driver": "580.95",
    "cuda_driver": "13.0",
}


def build(folder: Path, backend: str, network: ModelProto | None = None, **fields: Any) -> Path:
    model = save_at(folder / "model.onnx", network or conv_bn())
    sections = {"inputs": fields.pop("inputs")} if "inputs" in fields else {}
    spec = resolved({"backend": backend, **fields}, **sections)
    job = stage_job(spec, "engine", folder / "build", model)
    result = engine.run(job)
    assert result.status == "passed", result.reason
    write_result(
        job,
        result,
        started=datetime.now(timezone.utc),
        measured={"seconds": 1.0, "peak_rss_mib": 1.0},
    )
    return job.outputs["engine"]


def copied(engine_file: Path, folder: Path) -> Path:
    shutil.copytree(engine_file.parent, folder / "elsewhere")
    return folder / "elsewhere" / engine_file.name


def edit(engine_file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = engine_file.with_name("engine.json")
    figures = json.loads(record.read_text())
    change(figures)
    record.write_text(json.dumps(figures))


def with_gpu(monkeypatch: pytest.MonkeyPatch, gpu: dict[str, str] | None = RTX4090) -> None:
    monkeypatch.setattr(devices, "read_gpus", lambda visible: [gpu] if gpu else [])
    monkeypatch.setattr(devices, "find_gpus", lambda visible: (gpu,) if gpu else ())


def kinds(result: CompatibilityResult) -> list[str]:
    return [reason.kind for reason in result.reasons]


def tensorrt_engine(folder: Path, **changes: Any) -> Path:
    """Return an invalid engine file with the record of a TensorRT engine."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "engine.engine"
    file.write_bytes(b"ftrt" + bytes(100))
    built_with = {
        "tensorrt": "10.16.1.11", "gpu": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0",
        "driver": "580.1", "cuda": "13.0", "cuda_runtime": "12", "platform": "Linux x86_64",
    }  # fmt: skip
    record = {
        "backend": "tensorrt", "status": "passed", "portability": changes.pop("portability", {}),
        "built_with": {**built_with, **changes}, "files": {"engine.engine": {"bytes": 104}},
    }  # fmt: skip
    file.with_name("engine.json").write_text(json.dumps(record))
    return file
