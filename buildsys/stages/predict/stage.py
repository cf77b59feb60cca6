"""The predict stage: the original model on all samples of `evaluate`."""

from collections.abc import Mapping

from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import record
from buildsys.manifest.shape_cases import dims_of_shapes
from buildsys.onnx_graphs.tensors import Tensor
from buildsys.stages.predict.result import PredictResult
from buildsys.stages.reference.original import load_original
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Record the predictions of the original model.

    Raises: StageError: the model, the samples or the metric fail.
    """
    options, inputs = job.options["evaluate"], job.options["inputs"]
    original, metric = load_original(job), load_metric(options["metric"], options, job.project)
    shapes = {name: port["shape"] for name, port in inputs.items()}

    def predict(tensors: dict[str, Tensor]) -> Mapping[str, Tensor]:
        dims = dims_of_shapes(shapes, {name: t.shape for name, t in tensors.items()})
        return original.call(tensors, dims)

    job.progress("running the original model")
    recorded = record(options, inputs, job.project, metric, predict, job.count, job.parts)
    figures = PredictResult(
        title=metric.title,
        is_share=metric.is_share,
        value=metric.value(recorded.records),
        samples=len(recorded.names),
    )
    recorded.save(job.outputs["records"])
    return StageResult(figures=figures)
