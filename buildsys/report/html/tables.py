"""Tables of the page of a model. Cells are plain text, escaped by the templates."""

from __future__ import annotations

from dataclasses import dataclass

from buildsys.onnx_graphs.result_types import AgreementFigures
from buildsys.report import formatting as q
from buildsys.report.ranking import COLUMNS as RANKING_COLUMNS
from buildsys.report.ranking import ranking_cells, ranking_notes
from buildsys.report.report_types import Check, ComparisonLine, Report
from buildsys.report.stage_lines import COMMAND_COLUMNS, GATE_COLUMNS, command_cells, gate_cells

MOST_COMPARISONS = 64
_MOST_NODES = 12
Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Table:
    """A table; columns ending in ``>`` are aligned right."""

    columns: tuple[str, ...]
    rows: Rows
    title: str = ""
    notes: tuple[str, ...] = ()


def ranking(report: Report) -> Table:
    """List the ranked engines, the one to ship first."""
    ranking = report.ranking
    if ranking is None:
        return Table((), ())
    rows = tuple(ranking_cells(ranking, engine) for engine in ranking.ranked)
    return Table(RANKING_COLUMNS, rows, notes=tuple(ranking_notes(ranking)))


def comparisons(check: Check) -> Table:
    """List the worst comparisons of a check."""

    def badness(line: ComparisonLine) -> tuple[bool, bool, float]:
        relative = line.relative or 0.0
        return line.passed is False, relative != relative, relative

    def cells(line: ComparisonLine) -> tuple[str, ...]:
        dims = f" ({line.dims})" if line.dims and "=" not in line.case else ""
        place = line.subject, f"{line.case}{dims}", line.output
        if line.uninformative:  # its error of 0 means nothing
            return (*place, *[q.NOTHING] * 4, "not informative")
        errors = q.error(line.max_abs), q.error(line.relative), q.cosine(line.cosine)
        return (*place, *errors, q.share(line.top1), q.within_limit(line.passed))

    lines = check.comparisons
    worst = sorted(lines, key=badness, reverse=True)[:MOST_COMPARISONS]
    remarks: dict[str, list[str]] = {}  # remark -> cases
    for line in lines:
        for remark in (
            f"compared by policy {line.policy}" if line.policy else "",
            line.note,
            f"{line.uninformative}, so equality proves nothing" if line.uninformative else "",
        ):
            if remark:
                text = f"{line.subject}, {line.output}: {remark}"
                remarks.setdefault(text, []).append(line.case)
    notes = [f"{text} (case {', '.join(cases)})" for text, cases in remarks.items()]
    notes += [_agreement(output, figures) for output, figures in check.agreement.items()]
    if len(worst) < len(lines):
        text = f"The {len(worst)} worst of {len(lines)} comparisons; report.json has all of them."
        notes.insert(0, text)
    columns = (
        "graph or engine", "case", "output", "max abs error>", "relative error>", "cosine>",
        "top-1>", "within limits",
    )  # fmt: skip
    rows = tuple(cells(line) for line in lines if line in worst)
    return Table(columns, rows, notes=tuple(notes))


def _agreement(output: str, figures: AgreementFigures) -> str:
    if "uninformative" in figures:
        return f"{output}: {figures['uninformative']}."
    parts = [
        f"error {q.significant(figures['spread_error'])} of the spread",
        f"correlation {q.cosine(figures['correlation'])}",
        f"slope {figures['slope']:.3f}",
    ]
    if "class_agreement" in figures:
        parts.append(f"class agreement {q.share(figures['class_agreement'])}")
    return f"{output}, over {figures['samples']} samples: {', '.join(parts)}."


def graph_stages(report: Report) -> Table:
    """List sizes and multiply-accumulates of the graph at every stage."""
    graph, notes, rows = report.graph, [], []
    if any(stage.macs for stage in graph.stages):
        sizes = ", ".join(f"{name} = {size}" for name, size in graph.macs_at.items())
        counted = "multiply-accumulates of convolutions, matrix products and recurrent layers"
        notes.append(f"MACs{f' at {sizes}' if sizes else ''}: {counted}.")
    for stage in graph.stages:
        if stage.not_counted:
            counts = stage.not_counted.items()
            names = ", ".join(f"{name} {q.TIMES}{number}" for name, number in counts)
            text = f"The MACs of {stage.stage} are unknown, because {names} cannot be counted."
            notes.append(text)
        opsets = ", ".join(f"{domain} {version}" for domain, version in stage.opsets.items())
        numbers = q.count(stage.weights), q.count(stage.initializers)
        amounts = q.size(stage.initializer_bytes), q.large(stage.macs)
        rows.append((stage.stage, opsets or q.NOTHING, *numbers, *amounts))
    columns = ("graph", "opsets", "weights>", "initializers>", "their size>", "MACs>")
    return Table(columns, tuple(rows), "Stages of the graph", tuple(notes))


def searches(report: Report) -> Table:
    """List the nodes that searches kept in fp32."""
    rows, notes = [], []
    for line in report.searches:
        in_fp32 = "all" if line.is_fp32 else f"{len(line.kept)} of {q.count(line.candidates)}"
        errors = f"{q.error(line.error_without)} → {q.error(line.error_with)}"
        share = q.NOTHING if line.macs_low is None else q.percent(line.macs_low)
        limit = q.NOTHING if line.rtol is None else f"{line.rtol:.3g}"
        rows.append((line.variant, in_fp32, errors, limit, share, q.count(line.trials)))
        if line.is_fp32:
            notes.append(f"No choice of nodes in {line.precision} is within the limits.")
        elif line.kept:
            names = q.first_names([name for name, *_ in line.kept], _MOST_NODES)
            needed = "without any of them it exceeds the limits"
            why = needed if line.is_smallest else "perhaps more than needed"
            notes.append(f"In fp32 for {line.variant}: {names}; {why}.")
    columns = (
        "search", "nodes in fp32>", "relative error>", "limit of the search>",
        "MACs in low precision>", "trials>",
    )  # fmt: skip
    return Table(columns, tuple(rows), "Mixed precision", tuple(notes))


def gates(report: Report) -> Table:
    """List the gates of all engines."""
    return Table(GATE_COLUMNS, tuple(map(gate_cells, report.gates)))


def commands(report: Report) -> Table:
    """List the figures of all commands."""
    return Table(COMMAND_COLUMNS, tuple(map(command_cells, report.commands)))
