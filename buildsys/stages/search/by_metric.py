"""Trials of a search whose limit is the metric of `evaluate`.

The best of many graphs owes a part of its metric to the samples that it was chosen on. So a search
sees one half of them, and its engine is evaluated on the other, where it has to pass too.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any

from buildsys.errors import StageError
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import Recorded, load_recorded, record, require_same_samples
from buildsys.evaluation.statistics import Interval, interval_of_others, judge, paired_interval
from buildsys.onnx_graphs.tensors import Case
from buildsys.report.formatting import percent
from buildsys.stages.common.graph_runs import open_graph
from buildsys.stages.evaluate.calibration import check_calibration
from buildsys.stages.search.result import SearchedGraph
from buildsys.stages.search.stage import Trials
from buildsys.workers.job import Job


class MetricTrials(Trials):
    """Conversions of one graph, judged by the loss of a metric."""

    def __init__(self, job: Job, golden: dict[str, Case], most: int = 0) -> None:
        """Load the graph and the records of the original model.

        Raises: StageError: there are too few samples for any graph to pass.
        """
        super().__init__(job, golden, most)
        original, self._options = load_recorded(job.inputs["original"]), job.options["evaluate"]
        check_calibration(job, original)
        self._original = original.half(self._options["half"])
        self._metric = load_metric(self._options["metric"], self._options, job.project)
        self._drop = job.options["drop"] * (1 - job.options["search"]["margin"])
        self._graphs: dict[frozenset[str], SearchedGraph] = {}
        names = {"title": self._metric.title, "is_share": self._metric.is_share}
        self.limit_figures = {**names, "limits": {"drop": self._drop}, "graphs": []}
        equal = self._interval(self._original)
        if equal.high > self._drop:
            problem = f"half of the samples, {equal.samples:,}, are too few for the search to show"
            needed = ceil(2 * equal.samples * equal.high / self._drop)
            hint = f"evaluate about {needed:,} samples, or raise evaluate.drop"
            raise StageError(f"{problem} that a loss is at most {percent(self._drop)}", hint)

    def holds(self, nodes: Sequence[str]) -> bool:
        """Check that the loss with ``nodes`` in fp32 is within the limit."""
        return self._judged(nodes)["passed"]

    def check_all(self, nodes: Sequence[str]) -> dict[str, Any]:
        """Judge the metric with ``nodes`` in fp32, with the worst error of all cases."""
        return {**super().check_all(nodes), **self._judged(nodes)}

    def _interval(self, recorded: Recorded) -> Interval:
        """Estimate the loss on the samples of the other half."""
        seen = paired_interval(self._metric, self._original.records, recorded.records)
        return interval_of_others(seen)

    def _judged(self, nodes: Sequence[str]) -> SearchedGraph:
        key = frozenset(nodes)
        if key in self._graphs:
            return self._graphs[key]
        job, metric, inputs = self._job, self._metric, self._job.options["inputs"]
        run = open_graph(job, self.converted(nodes) or self._copy()).run
        try:
            recorded = record(self._options, inputs, job.project, metric, run, lambda *_: None)
            value = metric.value(recorded.records)
        except StageError as error:  # NaN, or outputs that the hook refuses
            if len(key) >= len(self.candidates):
                raise  # precision is no cause
            judged = SearchedGraph(verdict="failed", reason=error.problem)
        else:
            require_same_samples(self._original, recorded)
            loss, low, high, *_ = interval = self._interval(recorded)
            verdict = judge(interval, self._drop)
            judged = SearchedGraph(verdict=verdict, value=value, loss=loss, low=low, high=high)
        passed = judged["verdict"] == "passed"
        self._graphs[key] = SearchedGraph(**judged, in_fp32=len(key), passed=passed)
        self.limit_figures["graphs"].append(self._graphs[key])
        return self._graphs[key]
