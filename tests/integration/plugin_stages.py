"""A stage that builds an engine with plugins, for a worker: what a plugin does to its process stays there."""

from __future__ import annotations

from buildsys.backends import tensorrt_rtx
from buildsys.backends.base import BuildRequest, OperatorUse
from buildsys.worker.job import Job, StageResult


def run(job: Job) -> StageResult:
    uses = tuple(
        OperatorUse(op, "plugin", job.project / path, job.project, job.fail) for op, path in job.options["plugins"]
    )
    request = BuildRequest(
        job.model, job.inputs["model"], job.outputs["engine"], job.options["engine"], job.options["inputs"],
        job.options["dims"], uses,
    )  # fmt: skip
    return StageResult(figures=tensorrt_rtx.build(request))
