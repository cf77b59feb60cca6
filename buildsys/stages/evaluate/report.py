"""What report and history say about the accuracy of engines."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.report_types import Table
from buildsys.report.result_files import Result
from buildsys.stages.evaluate.result import EvaluateResult

Results = Iterable[Result[EvaluateResult]]
_COLUMNS = ("engine", "metric", "original>", "engine>", "loss (95 % interval)>", "allowed>")
_CHANGED = ("engine", "sample", "label", "original", "predicted")
_SAMPLE = ("sample", "label", "original", "engine")  # fields of a flip
_FIGURES = ("value", "loss", "low", "high")
_COMPLETE = {"title", "is_share", "samples", "original", *_FIGURES}
_MOST_CLASSES = 40


def key_figure(result: EvaluateResult) -> str:
    """State the metric with the interval of its loss."""
    text = q.metric(result["value"], is_share=result["is_share"])
    return f"{result['title']} {text}, loss {q.loss(result)}"


def table(results: Results) -> Table:
    """List the metric of all engines with the interval of its loss."""
    rows = []
    for result in results:
        if (own := result.content).keys() >= _COMPLETE:
            of = f"{own['title']}, {own['samples']:,} samples"
            sides = (q.metric(v, is_share=own["is_share"]) for v in (own["original"], own["value"]))
            drop = q.percent(own["drop"]) if "drop" in own else q.NOTHING
            rows.append((result.variant, of, *sides, q.loss(own), drop))
    return Table("Accuracy on data", _COLUMNS, tuple(rows))


def details(results: Sequence[Result[EvaluateResult]]) -> Iterator[Table]:
    """Yield the samples that change, and the metric by class."""
    rows = tuple(
        (result.variant, *(str(flip.get(field, "")) for field in _SAMPLE))
        for result in results
        for flip in result.content.get("flips", [])
    )
    yield Table("Changed predictions", _CHANGED, rows, images=tuple(row[1] for row in rows))
    yield _class_table([result for result in results if result.content.get("classes")])


def _class_table(results: Sequence[Result[EvaluateResult]]) -> Table:
    """List the metric, a share, of each engine by class, the largest loss first."""
    rows: dict[str, list[str]] = {}
    losses: dict[str, float] = {}
    for place, result in enumerate(results):
        for own in result.content.get("classes", []):
            name, before, after = own.get("name", ""), own.get("original"), own.get("engine")
            texts = [q.NOTHING if v is None else q.percent(v) for v in (before, after)]
            unknown = [q.NOTHING] * len(results)
            row = rows.setdefault(name, [name, q.count(own.get("samples")), texts[0], *unknown])
            row[3 + place] = texts[1]
            losses[name] = max(losses.get(name, -1.0), (before or 0.0) - (after or 0.0))
    order = sorted(rows, key=lambda name: -losses[name])
    more = len(order) - _MOST_CLASSES
    notes = (f"{more} more classes, which lose less, are in the results.",) if more > 0 else ()
    columns = ("class", "samples>", "original>", *(f"{result.variant}>" for result in results))
    largest = tuple(tuple(rows[name]) for name in order[:_MOST_CLASSES])
    return Table("Accuracy by class", columns, largest, notes)


def history_figures(result: EvaluateResult) -> dict[str, Any]:
    """Collect the metric and the interval of its loss."""
    return {name: value for name, value in result.items() if name in _FIGURES}
