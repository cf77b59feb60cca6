"""The report stage: sums up all results of a model for programs (JSON) and people (Markdown)."""

from __future__ import annotations

from buildsys.report.assemble import assemble
from buildsys.report.markdown import render
from buildsys.report.model import as_json
from buildsys.worker.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write the Markdown report where it is asked for, and return the figures of the JSON one.

    The stage has passed when the report is written; whether the model's build has is the report's verdict.
    """
    report = assemble(job.model, job.options["manifest"], job.inputs)
    if "markdown" in job.outputs:
        job.outputs["markdown"].write_text(render(report), encoding="utf-8")
    return StageResult(figures=as_json(report))
