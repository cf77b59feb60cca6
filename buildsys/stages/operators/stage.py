"""Stage operators: the local functions and libraries of a model's custom operators."""

from __future__ import annotations

from typing import Any

from buildsys.stages.operators.compile import make_library
from buildsys.system.files import sha256_of
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write ``functions`` (and ``functions.BACKEND``) and one ``library.NAME`` per library.

    Raises: StageError: a function cannot be made or is not valid, a source does not compile, a library does not fit.
    """
    functions = {
        role: _functions(job, role, references)
        for role, references in job.options.get("functions", {}).items()
    }
    libraries = {}
    for name, entry in job.options.get("libraries", {}).items():
        target = job.outputs[f"library.{name}"]
        job.progress(f"making the library {name}")
        libraries[name] = {**make_library(entry, target, job.project), "sha256": sha256_of(target)}
    return StageResult(figures={"functions": functions, "libraries": libraries})


def _functions(job: Job, role: str, references: dict[str, str]) -> dict[str, Any]:
    from buildsys.stages.operators.local_functions import (  # needs onnx, which libraries do not
        function_model,
        origins_of,
    )
    from buildsys.stages.operators.nodes import nodes_of, operator_of

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
