"""Operators stage: local functions and libraries of a model's custom operators."""

from __future__ import annotations

from buildsys.report.results.operators import LocalFunction, OperatorLibrary, OperatorsResult
from buildsys.stages.operators.libraries import make_library
from buildsys.system.files import sha256_of
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write ``functions`` (and ``functions.BACKEND``) and one ``library.NAME`` per library.

    Raises: StageError: a function is invalid, a source does not compile, a library does not load.
    """
    functions = {
        role: _write_functions(job, role, references)
        for role, references in job.options.get("functions", {}).items()
    }
    libraries: dict[str, OperatorLibrary] = {}
    for name, entry in job.options.get("libraries", {}).items():
        target = job.outputs[f"library.{name}"]
        job.progress(f"making the library {name}")
        library = make_library(entry, target, job.project)
        libraries[name] = {**library, "sha256": sha256_of(target)}
    return StageResult(figures=OperatorsResult(functions=functions, libraries=libraries))


def _write_functions(job: Job, role: str, references: dict[str, str]) -> dict[str, LocalFunction]:
    # libraries do not need onnx
    from buildsys.stages.operators.function_placement import nodes_of, operator_of, origins_of
    from buildsys.stages.operators.local_functions import function_model

    job.progress("making the local functions")
    model = function_model(references, job.project)
    job.outputs[role].write_bytes(model.SerializeToString(deterministic=True))
    origins = origins_of(model)
    return {
        operator_of(function): {
            "from": origins[operator_of(function)],
            "nodes": len(list(nodes_of(function))),
            "opsets": {entry.domain or "ai.onnx": entry.version for entry in function.opset_import},
        }
        for function in model.functions
    }
