"""The graph of an engine in the newest opset that its library reads."""

from buildsys.errors import CheckFailed
from buildsys.manifest.exports import NEW_EXPORTS
from buildsys.onnx_graphs.onnx_file import check_file, file_bytes, load_model, opsets, save_model
from buildsys.onnx_graphs.opset_changes import lower_opset
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.common.golden_check import failures_of, figures_of
from buildsys.stages.common.graph_runs import compare_cases, limits_of, run_cases
from buildsys.stages.convert.result import ConvertResult
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job, StageResult

_OLDER_EXPORTS = NEW_EXPORTS[:2]  # opsets 18 and 17


def run(job: Job) -> StageResult:
    """Write the graph in the older opset; other outputs than before fail.

    Raises: StageError: the older opset lacks something. CheckFailed: the result is invalid.
    """
    source, target = job.inputs["model"], job.outputs["model"]
    model = load_model(source)
    before, limits = opsets(model)["ai.onnx"], limits_of(model)
    lower_opset(model, **job.options["lowered"], changes=_OLDER_EXPORTS)
    opset = opsets(model)["ai.onnx"]
    save_model(model, target)
    del model  # it may be large
    what = f"the graph in opset {opset}"
    check_file(target, what, CheckFailed)
    figures = ConvertResult(
        opset=opset,
        opset_before=before,
        bytes_before=file_bytes(source),
        bytes_after=file_bytes(target),
        warnings=[],
    )
    if missing := implementation_of(job).missing_operators(source):
        reason = f"nothing implements {' and '.join(missing)} for ONNX Runtime"
        figures["warnings"] = [f"{reason}: the graphs in both opsets are not compared"]
        return StageResult(figures=figures)
    job.progress(f"running the graph in opset {opset}")
    inputs = {case: load_case(job.inputs[f"case.{case}"]).inputs for case in job.options["cases"]}
    expected, actual = (run_cases(job, path, inputs) for path in (source, target))
    compared = compare_cases(actual, expected, limits, inputs, job.options.get("compare"))
    figures["cases"] = figures_of(compared)
    for _, case, name, comparison in failures_of("lowered", compared):
        sentence = comparison.sentence(what, f"that in opset {before}")
        reason = f"opset {opset} changed {name} in case {case}: {sentence}"
        hint = "build the engine with a newer library"
        return StageResult("failed", reason, hint, figures, _OLDER_EXPORTS)
    return StageResult(figures=figures)
