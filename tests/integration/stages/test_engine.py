"""The engine stage: provenance of engines, and failures without an engine."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from engine_jobs import resolved, save_at, stage_job
from small_graphs import conv_bn, one_node

from buildsys.backends.cuda_gpus import find_driver
from buildsys.backends.interface import Backend, Calibration, load_backend
from buildsys.errors import StageError
from buildsys.stages.engine import stage as engine
from buildsys.stages.engine.stage import shared_timings
from buildsys.workers.job import Job

CONTRACT = {
    "backend", "engine_sha256", "engine_bytes", "onnx_sha256", "settings", "profiles", "inputs",
    "outputs", "layers", "precision_shares", "build_seconds", "messages", "device", "phases",
    "files", "portability", "built_with",
}  # fmt: skip


def engine_job(folder: Path, backend: str, model: Any = None, **fields: Any) -> Job:
    path = save_at(folder / "model.onnx", model or conv_bn())
    return stage_job(resolved({"backend": backend, **fields}), "engine", folder / "build", path)


def test_an_onnxruntime_engine_has_its_provenance(tmp_path: Path) -> None:
    said: list[str] = []
    job = replace(engine_job(tmp_path, "onnxruntime"), progress=said.append)
    result = engine.run(job)
    assert result.status == "passed"
    assert said == ["optimizing the graph", "reading the engine back"]
    assert set(result.figures) == CONTRACT | {"source_nodes", "ranges"}
    written = job.outputs["engine"].read_bytes()
    assert job.outputs["engine"].name == "engine.onnx"
    assert result.figures["engine_sha256"] == hashlib.sha256(written).hexdigest()
    assert result.figures["engine_bytes"] == len(written)
    assert (
        result.figures["onnx_sha256"]
        == hashlib.sha256((tmp_path / "model.onnx").read_bytes()).hexdigest()
    )
    assert not job.outputs["engine.data"].exists()
    assert json.loads(json.dumps(result.figures)) == result.figures


def test_external_data_is_part_of_the_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from buildsys.backends.onnxruntime import backend

    monkeypatch.setattr(backend, "_INLINE_LIMIT_BYTES", 0)
    job = engine_job(tmp_path, "onnxruntime", one_node("Relu"))
    result = engine.run(job)
    files = [job.outputs[role] for role in ("engine", "engine.data") if job.outputs[role].exists()]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert result.figures["engine_sha256"] == digest
    assert result.figures["engine_bytes"] == sum(file.stat().st_size for file in files)


@pytest.mark.skipif(
    bool(find_driver().gpus), reason="checks what is said on a machine without a GPU"
)
@pytest.mark.parametrize(
    ("backend", "fields", "reason"),
    [
        ("onnxruntime", {"provider": "cuda"}, "no cuda provider"),
        ("tensorrt_rtx", {"compute_capabilities": ("current",)}, "compute capability 'current'"),
    ],
)
def test_a_backend_that_cannot_work_here_leaves_no_engine(
    tmp_path: Path, backend: str, fields: dict[str, Any], reason: str
) -> None:
    pytest.importorskip(backend)
    job = engine_job(tmp_path, backend, **fields)
    result = engine.run(job)
    assert result.status == "unavailable"
    assert reason in result.reason
    assert result.hint
    assert result.figures["backend"] == backend
    assert not job.outputs["engine"].exists()


def test_a_refused_graph_fails_with_the_model_and_the_node(tmp_path: Path) -> None:
    with pytest.raises(
        StageError, match="model m: ONNX Runtime cannot take node 0 'nosuchoperator'"
    ):
        engine.run(engine_job(tmp_path, "onnxruntime", one_node("NoSuchOperator")))


def test_only_builders_with_timings_get_a_timing_cache(tmp_path: Path) -> None:
    for backend in ("onnxruntime", "tensorrt_rtx"):
        job = replace(engine_job(tmp_path / backend, backend), timing_caches=tmp_path / "caches")
        assert shared_timings(job, cast(Backend, None)) is None
    assert not (tmp_path / "caches").exists()


def test_a_build_gets_a_private_copy_and_shares_its_additions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulate a GPU builder by writing lines to the private file."""
    pytest.importorskip("tensorrt_rtx")
    facts = {
        "tensorrt": "10.16.1",
        "gpu": "A GPU",
        "compute_capability": "9.0",
        "cuda": "13.0",
        "driver": "580.1",
    }
    monkeypatch.setattr(
        "buildsys.stages.engine.stage.built_with",
        lambda backend, device: {**facts, "platform": "Linux"},
    )

    def build(timings: bytes, **fields: Any) -> dict[str, Any]:
        scratch = tmp_path / timings.decode().strip()
        scratch.mkdir()
        job = replace(engine_job(scratch, "tensorrt", **fields), timing_caches=tmp_path / "caches")
        shared, private = shared_timings(job, load_backend("tensorrt_rtx")), scratch / "private"
        assert shared is not None
        lent = shared.checkout(private)
        private.write_bytes((lent or b"") + timings)
        return shared.merge_back(private, lent)

    first = build(b"conv\n")
    assert build(b"gemm\n", precision="fp16", workspace=1 << 20)["lent"] == first["digest"]
    assert "lent" not in build(b"pool\n", avg_timing_iterations=8), "other conditions"


def test_the_calibration_of_a_builder_is_recorded(tmp_path: Path) -> None:
    batches, cache = tmp_path / "batches.npz", tmp_path / "calibration.cache"
    batches.write_bytes(b"batches")
    cache.write_bytes(b"ranges")
    request: Any = SimpleNamespace(operators=(), calibration=Calibration(batches, "entropy", cache))
    assert engine._optional_figures(engine_job(tmp_path, "onnxruntime"), request)[
        "calibration"
    ] == {
        "algorithm": "entropy",
        "batches_sha256": hashlib.sha256(b"batches").hexdigest(),
        "cache_sha256": hashlib.sha256(b"ranges").hexdigest(),
    }
