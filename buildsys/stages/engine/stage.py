"""Build an engine: ONNX in, engine file and its provenance out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.backends import load_backend
from buildsys.backends.interface import (
    Backend,
    BuildRequest,
    Calibration,
    Figures,
    GraphRefusedError,
    OperatorUse,
)
from buildsys.errors import StageError, Unavailable
from buildsys.stages.engine.timing_cache import TimingCacheCopy, checkout
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.remedies.refused_graph import explain_refusal
from buildsys.system.engine_environment import built_with
from buildsys.system.files import sha256_of, start_writeback
from buildsys.workers.job import Job, StageResult

_PORTABILITY = (
    "version_compatible",
    "exclude_lean_runtime",
    "hardware_compatibility",
    "compute_capabilities",
)


def run(job: Job) -> StageResult:
    """Build the engine with its backend. ``unavailable`` where the backend cannot work here."""
    options = job.options["engine"]
    try:
        backend = load_backend(options["backend"], job.toolchain)
        backend.prepare(options)
        figures = _built(job, backend)
    except Unavailable as reason:
        _remove_engine(job)
        return StageResult(
            "unavailable", reason.problem, reason.hint, {"backend": options["backend"]}
        )
    return StageResult(figures={"backend": options["backend"], **figures})


def _built(job: Job, backend: Backend) -> Figures:
    """Build the engine. Raises: Unavailable: its graph has to be changed first, for which its toolchain lacks onnx."""
    try:
        return _build(job, backend)
    except ModuleNotFoundError as error:
        if job.toolchain is None or error.name != "onnx":
            raise
        name, pip = job.toolchain.name, job.toolchain.pip
        problem = f"the graph has to be changed for this engine, and the toolchain {name} has no onnx to do that"
        raise Unavailable(problem, f"{pip} onnx") from error


def _build(job: Job, backend: Backend) -> Figures:
    clock = time.perf_counter()
    implementation = implementation_of(job, job.options["engine"]["backend"])
    with TemporaryDirectory(dir=job.outputs["engine"].parent) as folder:
        graph = implementation.graph(job.inputs["model"], Path(folder))
        timing_cache = checkout(job, backend, Path(folder))
        prepared = time.perf_counter() - clock
        request = _request(graph, implementation.uses, job, timing_cache)
        with ThreadPoolExecutor(
            max_workers=1
        ) as beside:  # large files take their time, and another core
            onnx_digest = beside.submit(sha256_of, *_onnx_files(job))
            return _build_from(request, job, backend, timing_cache, prepared, onnx_digest)


def _request(
    graph: Path, operators: tuple[OperatorUse, ...], job: Job, timing_cache: TimingCacheCopy
) -> BuildRequest:
    return BuildRequest(
        model=job.model,
        onnx=graph,
        engine=job.outputs["engine"],
        options=job.options["engine"],
        inputs=job.options.get("inputs", {}),  # and dims: for those who build for ranges of shapes
        dims=job.options.get("dims", {}),
        operators=operators,
        project=job.project,
        timing_cache=timing_cache.path,
        calibration=_calibration(job),
        progress=job.progress,
    )


def _onnx_files(job: Job) -> list[Path]:
    return [job.inputs[role] for role in ("model", "model.data") if role in job.inputs]


def _build_from(
    request: BuildRequest,
    job: Job,
    backend: Backend,
    timing_cache: TimingCacheCopy,
    prepared_s: float,
    onnx_digest: Future[str],
) -> Figures:
    operators = request.operators
    start = time.perf_counter()
    try:
        built = backend.build(request)
    except GraphRefusedError as refusal:
        raise explain_refusal(refusal, request, job) from refusal
    seconds = time.perf_counter() - start
    files = [*_engine_files(job), *_copied_libraries(job)]
    for file in files:
        start_writeback(file)
    job.progress("reading the engine back")
    start = time.perf_counter()
    with ThreadPoolExecutor(max_workers=1) as beside:
        digesting = {file.name: beside.submit(sha256_of, file) for file in files}
        described = backend.describe(request.engine, request.options, operators)
    read_s = time.perf_counter() - start
    phases = {"prepare": prepared_s, **built.pop("phases", {"build": seconds}), "read_back": read_s}
    digests = {name: digest.result() for name, digest in digesting.items()}
    device = backend.device(request.options)
    return {
        **built,
        **timing_cache.figures(list(built.get("messages", ()))),
        **described,
        **(
            {"operators": {use.op: f"{use.kind} {use.path.name}" for use in operators}}
            if operators
            else {}
        ),
        **_calibrated(request.calibration),
        "build_seconds": round(seconds, 3),
        "phases": {name: round(duration, 3) for name, duration in phases.items()},
        "engine_sha256": sha256_of(*files) if len(files) > 1 else digests[files[0].name],
        "engine_bytes": sum(file.stat().st_size for file in files),
        "files": {
            file.name: {"bytes": file.stat().st_size, "sha256": digests[file.name]}
            for file in files
        },
        "onnx_sha256": onnx_digest.result(),
        "portability": _portability(job.options["engine"]),
        "built_with": built_with(job.options["engine"]["backend"], device),
        "device": device,
    }


def _portability(options: Mapping[str, Any]) -> Figures:
    """Return what the engine was asked to run on beside the machine that builds it."""
    flags = options.get("flags") or {}
    asked = {name: options.get(name, flags.get(name)) for name in _PORTABILITY}
    return {name: value for name, value in asked.items() if value not in (None, False, "none")}


def _calibration(job: Job) -> Calibration | None:
    """Return what a builder calibrates int8 on itself; None where the graph has quantizers."""
    if "calibration" not in job.options:
        return None
    algorithm = job.options["calibration"]["algorithm"]
    if algorithm not in ("entropy", "minmax"):
        raise StageError(
            f"engine {job.variant}: TensorRT's calibrators are entropy and minmax, not {algorithm}",
            "set calibration.algorithm to one of these, or quantization: explicit for the engine",
        )
    return Calibration(job.inputs["batches"], algorithm, job.outputs["calibration"])


def _calibrated(calibration: Calibration | None) -> Figures:
    """Return what a builder calibrated with, for the record."""
    if calibration is None:
        return {}
    files = {"batches": calibration.batches, "cache": calibration.cache}
    digests = {f"{name}_sha256": sha256_of(file) for name, file in files.items() if file.is_file()}
    return {"calibration": {"algorithm": calibration.algorithm, **digests}}


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
