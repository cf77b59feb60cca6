"""Build an engine: ONNX in, engine file and its provenance out."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from buildsys.backends import load_backend
from buildsys.backends.base import Backend, BuildRequest, Calibration, Figures, GraphRefusedError, OperatorUse
from buildsys.digest import sha256_of
from buildsys.errors import StageError, Unavailable
from buildsys.ladder.refused import explained
from buildsys.operators.implementation import implementation_of
from buildsys.worker.job import Job, StageResult
from buildsys.writeback import start_writeback


def run(job: Job) -> StageResult:
    """Build the engine with its backend. ``unavailable`` where the backend cannot work here."""
    options = job.options["engine"]
    try:
        backend = load_backend(options["backend"])
        backend.prepare(options)
        figures = _build(job, backend)
    except Unavailable as reason:
        _remove_engine(job)
        return StageResult("unavailable", reason.problem, reason.hint, {"backend": options["backend"]})
    return StageResult(figures={"backend": options["backend"], **figures})


def _build(job: Job, backend: Backend) -> Figures:
    implementation = implementation_of(job, job.options["engine"]["backend"])
    with TemporaryDirectory(dir=job.outputs["engine"].parent) as folder:
        graph = implementation.graph(job.inputs["model"], Path(folder))
        return _build_from(graph, implementation.uses, job, backend)


def _build_from(graph: Path, operators: tuple[OperatorUse, ...], job: Job, backend: Backend) -> Figures:
    request = BuildRequest(
        model=job.model,
        onnx=graph,
        engine=job.outputs["engine"],
        options=job.options["engine"],
        inputs=job.options.get("inputs", {}),  # and dims: for those who build for ranges of shapes
        dims=job.options.get("dims", {}),
        operators=operators,
        project=job.project,
        calibration=_calibration(job),
        progress=job.progress,
    )
    start = time.perf_counter()
    try:
        built = backend.build(request)
    except GraphRefusedError as refusal:
        raise explained(refusal, request, job) from refusal
    seconds = time.perf_counter() - start
    files = [*_engine_files(job), *_copied_libraries(job)]
    for file in files:
        start_writeback(file)
    job.progress("reading the engine back")
    return {
        **built,
        **backend.describe(request.engine, request.options, operators),
        **({"operators": {use.op: f"{use.kind} {use.path.name}" for use in operators}} if operators else {}),
        "build_seconds": round(seconds, 3),
        "engine_sha256": sha256_of(*files),
        "engine_bytes": sum(file.stat().st_size for file in files),
        "onnx_sha256": sha256_of(*(job.inputs[role] for role in ("model", "model.data") if role in job.inputs)),
        "device": backend.device(request.options),
    }


def _calibration(job: Job) -> Calibration | None:
    """Return what a builder that chooses types itself calibrates int8 on; strongly typed graphs have quantizers."""
    if "calibration" not in job.options:
        return None
    algorithm = job.options["calibration"]["algorithm"]
    if algorithm not in ("entropy", "minmax"):
        raise StageError(
            f"engine {job.variant}: TensorRT's calibrators are entropy and minmax, not {algorithm}",
            "set calibration.algorithm to one of these, or typing: strong for the engine",
        )
    return Calibration(job.inputs["batches"], algorithm, job.outputs["calibration"])


def _engine_files(job: Job) -> list[Path]:
    """Return the engine file and, when there is one, its external data."""
    engine = job.outputs["engine"]
    if not engine.is_file() or engine.stat().st_size == 0:
        raise StageError(f"model {job.model}: the backend wrote no engine to {engine.name}")
    return [file for file in (engine, job.outputs["engine.data"]) if file.is_file()]


def _copied_libraries(job: Job) -> list[Path]:
    """Put the operator libraries beside the engine, which needs them wherever it runs."""
    roles = [role for role in job.outputs if role.startswith("library.")]
    for role in roles:
        shutil.copyfile(job.inputs[role], job.outputs[role])
    return [job.outputs[role] for role in roles]


def _remove_engine(job: Job) -> None:
    for role in job.outputs.keys() - {"result"}:
        job.outputs[role].unlink(missing_ok=True)
