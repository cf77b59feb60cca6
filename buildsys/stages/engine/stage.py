"""The engine stage: ONNX in, engine file and its provenance out."""

import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.backends.interface import (
    Backend,
    BuildRequest,
    Calibration,
    Definition,
    EarlierBuild,
    Figures,
    GraphRefusedError,
    load_backend,
)
from buildsys.errors import StageError, Unavailable
from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.models.images import describe_images
from buildsys.models.user_code import located
from buildsys.onnx_graphs.graph_reader import read_graph
from buildsys.stages.common.remedies import explain_refusal
from buildsys.stages.operators.implementation import implementation_of
from buildsys.stages.search.result import read_kept_nodes
from buildsys.store.timing_caches import SharedTimingCache
from buildsys.system.backend_registry import describe_backend
from buildsys.system.compatibility import built_with
from buildsys.system.files import sha256_of
from buildsys.system.user_modules import source_of
from buildsys.workers.job import Job, StageResult

# settings for running on other machines
_PORTABILITY = (
    "version_compatible", "exclude_lean_runtime", "hardware_compatibility", "compute_capabilities",
)  # fmt: skip
# fields without effect on tactic times; any other field, also a new one, keeps caches apart
_NOT_TIMED = (
    "backend", "precision", "typing", "profiles", "workspace", "profiling_verbosity", "network",
    "layer_precisions", "precision_constraints", "precision_share", "io",
    "toolchain", "max_threads", "calibration", "quantization", "auto",
)  # fmt: skip


def run(job: Job) -> StageResult:
    """Build the engine; ``unavailable`` if its backend cannot work here."""
    options = job.options["engine"]
    try:
        backend = load_backend(options["backend"], job.toolchain, options.get("unusable", ""))
        backend.prepare(options)
        figures = _build(job, backend)
    except Unavailable as reason:
        for role in job.outputs.keys() - {"result"}:
            job.outputs[role].unlink(missing_ok=True)
        backend_name = {"backend": options["backend"]}
        return StageResult("unavailable", reason.problem, reason.hint, backend_name)
    return StageResult(figures={"backend": options["backend"], **figures})


def _build(job: Job, backend: Backend) -> Figures:
    options, clock = job.options["engine"], time.perf_counter
    started = clock()
    implementation = implementation_of(job, options["backend"])
    _check_quantizers(job)
    with TemporaryDirectory(dir=job.outputs["engine"].parent) as folder:
        program = job.inputs.get("program", Path())
        graph = program
        if "model" in job.inputs:
            graph = implementation.graph(job.inputs["model"], Path(folder))
        shared, private = shared_timings(job, backend), Path(folder, "timing_cache")
        lent = shared.checkout(private) if shared else None
        request = BuildRequest(
            model=job.model,
            onnx=graph,
            program=program,
            definition=_definition(job),
            engine=job.outputs["engine"],
            options=options,
            inputs=job.options.get("inputs", {}),  # with dims: for backends that build for ranges
            dims=job.options.get("dims", {}),
            operators=implementation.uses,
            project=job.project,
            timing_cache=private if shared else None,
            fp32_nodes=_fp32_nodes(job),
            calibration=_calibration(job),
            earlier=tuple(
                EarlierBuild(Path(files["engine"]), Path(files["result"])) for files in job.earlier
            ),
            progress=job.progress,
            count=job.count,
        )
        prepared = clock()
        try:
            built = backend.build(request)
        except GraphRefusedError as refusal:
            raise explain_refusal(refusal, request, job) from refusal
        except Unavailable:
            raise
        except StageError as error:
            error.changes = error.changes or OTHER_EXPORTS
            raise
        finished = clock()
        files = _output_files(job)
        job.progress("reading the engine back")
        described = backend.describe(request.engine, options, request.operators)
        phases = {
            "prepare": prepared - started,
            **built.pop("phases", {"build": finished - prepared}),
            "read_back": clock() - finished,
        }
        figures: Figures = {**built, "messages": [*built.get("messages", ())], **described}
        if shared and "refitted_from" not in built:
            if timing_cache := shared.merge_back(private, lent):
                figures["timing_cache"] = timing_cache
            figures["messages"] += shared.warnings
        digests = {file.name: sha256_of(file) for file in files}
        device = backend.device(options)
        return {
            **figures,
            **_optional_figures(job, request),
            "build_seconds": round(finished - prepared, 3),
            "phases": {name: round(duration, 3) for name, duration in phases.items()},
            "engine_sha256": sha256_of(*files) if len(files) > 1 else digests[files[0].name],
            "engine_bytes": sum(file.stat().st_size for file in files),
            "files": {
                file.name: {"bytes": file.stat().st_size, "sha256": digests[file.name]}
                for file in files
            },
            **_origin(job, request.definition),
            "portability": _portability(options),
            "built_with": built_with(options["backend"], device),
            "device": device,
        }


def _check_quantizers(job: Job) -> None:
    """Refuse an own precision for a quantized graph, and a graph without the expected quantizers.

    Raises: StageError: either of them.
    """
    options = job.options["engine"]
    if "model" not in job.inputs or options["precision"] not in ("int8", "fp16", "bf16"):
        return
    try:
        graph = read_graph(job.inputs["model"])
    except Unavailable:  # this interpreter has no onnx
        return
    from buildsys.onnx_graphs.quantizers import quantizers, refuse_quantized

    if options["precision"] != "int8":
        refuse_quantized(graph, options["precision"])
    elif options.get("quantized") and not quantizers(graph):
        problem = "the network has no quantizers, though quantize.tool is source"
        raise StageError(problem, "remove it, and add a section calibration")


def _optional_figures(job: Job, request: BuildRequest) -> Figures:
    """Describe operators, ranges and calibration, where there are any."""
    figures: Figures = {}
    if request.operators:
        figures["operators"] = {
            use.op: use.kind if use.path is None else f"{use.kind} {use.path.name}"
            for use in request.operators
        }
    if "ranges" in job.options:
        figures["ranges"] = job.options["ranges"]
    elif spans := {
        name: [span["min"], span["max"], name, *filter(None, [span.get("multiple_of")])]
        for name, span in request.dims.items()
    }:
        figures["ranges"] = {
            name: [spans.get(size, size) for size in port["shape"]]
            for name, port in request.inputs.items()
        }
    if images := job.options.get("images"):
        figures["images"] = {
            name: {"color": image["color"], "steps": describe_images(image, image["shape"])}
            for name, image in images.items()
        }
    if calibration := request.calibration:
        recorded: dict[str, str] = {}
        if calibration.algorithm:
            recorded["algorithm"] = calibration.algorithm
        if calibration.batches.is_file():
            recorded["batches_sha256"] = sha256_of(calibration.batches)
        if calibration.cache.is_file():
            recorded["cache_sha256"] = sha256_of(calibration.cache)
        figures["calibration"] = recorded
    return figures


def _origin(job: Job, definition: Definition | None) -> dict[str, str]:
    """Digest what the engine was made from."""
    if definition is not None:
        function = Path(located(source_of(definition.function), job.project).file)
        weights = [definition.weights] if definition.weights else []
        return {"definition_sha256": sha256_of(function, *weights)}
    name = "program_sha256" if "program" in job.inputs else "onnx_sha256"
    roles = [role for role in ("program", "model", "model.data") if role in job.inputs]
    return {name: sha256_of(*(job.inputs[role] for role in roles))}


def _portability(options: Mapping[str, Any]) -> dict[str, Any]:
    flags = options.get("flags") or {}
    settings = {name: options.get(name, flags.get(name)) for name in _PORTABILITY}
    return {n: v for n, v in settings.items() if v not in (None, False, "none")}


def _definition(job: Job) -> Definition | None:
    """Read the function that fills the network by hand, None for a graph."""
    if "definition" not in job.options:
        return None
    section = job.options["definition"]
    weights = (
        job.project / section["weights"] if "weights" in section else job.inputs.get("weights")
    )
    return Definition(section["function"], section["kwargs"], weights, section["outputs"])


def _fp32_nodes(job: Job) -> dict[str, tuple[str, ...]]:
    nodes = read_kept_nodes(job.inputs.get("nodes"))
    return {"*": ()} if nodes.all else {n: tuple(outputs) for n, outputs in nodes.results.items()}


def _calibration(job: Job) -> Calibration | None:
    """Read the builder's own int8 calibration; None for a quantized graph."""
    if "calibration" not in job.options:
        return None
    if "images" in job.options:
        problem = f"engine {job.variant} calibrates itself, with values that are no images"
        raise StageError(problem, "set quantization: explicit, or remove inside from preprocess")
    algorithm = job.options["calibration"].get("algorithm", "")
    description = describe_backend(job.options["engine"]["backend"])
    if algorithm and algorithm not in description.calibrators:
        names = " and ".join(description.calibrators)
        raise StageError(
            f"engine {job.variant}: {description.title}'s calibrators are {names}, not {algorithm}",
            "set calibration.algorithm to one of these, or quantization: explicit for the engine",
        )
    return Calibration(job.inputs["batches"], algorithm, job.outputs["calibration"])


def _output_files(job: Job) -> list[Path]:
    """List the engine, its external data and its operator libraries."""
    engine = job.outputs["engine"]
    if not engine.is_file() or engine.stat().st_size == 0:
        problem = f"model {job.model}: the backend wrote no engine to {engine.name}"
        raise StageError(problem, "its log has what the library printed")
    libraries = [role for role in job.outputs if role.startswith("library.")]
    for role in libraries:  # next to the engine, which needs them to run
        shutil.copyfile(job.inputs[role], job.outputs[role])
    others = [path for role, path in job.outputs.items() if role.startswith("engine.")]
    return [engine, *filter(Path.is_file, others), *(job.outputs[role] for role in libraries)]


def shared_timings(job: Job, backend: Backend) -> SharedTimingCache | None:
    """Find the cache of timings for this build, None if it uses none."""
    options: Mapping[str, Any] = job.options["engine"]
    folder = job.timing_caches
    if not describe_backend(options["backend"]).keeps_timings or folder is None:
        return None
    conditions = _conditions(options, backend)
    return None if conditions is None else SharedTimingCache(folder, conditions)


def _conditions(options: Mapping[str, Any], backend: Backend) -> dict[str, str] | None:
    """Collect the conditions of valid timings, None if the GPU is unknown."""
    facts: dict[str, Any] = {}
    with suppress(Unavailable):
        facts = built_with(options["backend"], backend.device(options))
    if not facts.get("gpu"):
        return None
    timed = {name: value for name, value in options.items() if name not in _NOT_TIMED}
    return {
        "library": f"{options['backend']}-{facts[options['backend']]}",
        "gpu": f"{facts['gpu']} {facts['compute_capability']}",
        "cuda": f"cuda{facts['cuda']} driver{facts['driver']}",
        "platform": facts["platform"],
        "settings": hashlib.sha256(json.dumps(timed, sort_keys=True).encode()).hexdigest()[:16],
    }
