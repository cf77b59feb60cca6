"""Tables of the page of a model. Cells are plain text, escaped by the templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from buildsys.onnx_graphs.result_types import AgreementFigures
from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.ranking import COLUMNS as RANKING_COLUMNS
from buildsys.report.ranking import ranking_cells, ranking_notes
from buildsys.report.report_types import Check, ComparisonLine, Report, SurgeryLine
from buildsys.report.stage_lines import (
    COMMAND_COLUMNS,
    GATE_COLUMNS,
    command_cells,
    gate_cells,
)

MOST_COMPARISONS = 64
_MOST_FAILURES = 20
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


def failures(check: Check) -> Table:
    """List the worst element of each failed comparison."""
    columns = (
        "graph or engine", "case", "output", "index", "actual>", "expected>", "problem",
    )  # fmt: skip
    rows = tuple(
        (
            line.subject, line.case, line.output, line.index, line.actual, line.expected,
            line.problem,
        )
        for line in check.failures[:_MOST_FAILURES]
    )  # fmt: skip
    further = len(check.failures) - _MOST_FAILURES
    notes = (f"… and {further} more failures in report.json.",) if further > 0 else ()
    return Table(columns, rows, notes=notes)


def _gpu_timings(report: Report) -> Table:
    """List throughput and memory on the GPU."""
    columns = (
        "engine", "case", "contender", "GPU p50 (ms)>", "p99 (ms)>", "wall p50 (ms)>",
        "p99 (ms)>", "items/s>", "queued>", "context>", "memory>",
    )  # fmt: skip
    rows = []
    for line in report.bench:
        if line.gpu_p50_ms is None:
            continue
        times = (line.gpu_p50_ms, line.gpu_p99_ms, line.p50_ms, line.p99_ms)
        rates = (line.throughput_per_s, line.queued_throughput_per_s)
        memory = (line.device_memory_bytes, line.memory_taken_bytes)
        numbers = [q.latency(value, noisy=line.noisy) for value in (*times, *rates)]
        contender = contender_title(line.contender) + (" NOISY" if line.noisy else "")
        rows.append((line.engine, line.case, contender, *numbers, *map(q.size, memory)))
    notes = (
        "GPU: time between two events on the stream, with inferences queued one after another."
        " Wall: time by the host's clock, from launch to completion.",
        "Queued: batch items per second if the GPU never waits for a result to be fetched.",
        "Context: memory of an execution context, without weights. Memory: what loading and binding"
        " the engine took.",
    )
    return Table(columns, tuple(rows), "Throughput and memory on the GPU", notes)


def _gpu_states(report: Report) -> Table:
    """List clocks, power, temperature and throttling during the measurements."""
    columns = (
        "engine", "case", "SM clock>", "memory clock>", "power>", "temperature>", "readings>",
        "throttled",
    )  # fmt: skip
    rows = []
    for state in report.gpu_states:
        spans = (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c)
        readings = (*(span or q.NOTHING for span in spans), q.count(state.readings))
        rows.append((state.engine, state.case, *readings, state.throttle))
    notes = ("Smallest, median and largest reading during the measurement.",)
    return Table(columns, tuple(rows), "Clocks, power and throttling", notes)


def _operators(report: Report) -> Table:
    rows = []
    for line in report.graph.operators:
        change = q.NOTHING
        if line.exported is not None and line.simplified is not None:
            change = f"{line.simplified - line.exported:+d}".replace("+0", "0")
        rows.append((line.operator, q.count(line.exported), q.count(line.simplified), change))
    return Table(("operator", "exported>", "simplified>", "change>"), tuple(rows), "Operators")


def _tensors(report: Report) -> Table:
    rows = tuple(
        (tensor.role, tensor.name, tensor.dtype, f" {q.TIMES} ".join(tensor.shape) or "scalar")
        for tensor in report.tensors
    )
    notes = tuple(f"{name}: {span}" for name, span in report.dims.items())
    return Table(("tensor", "name", "dtype", "shape"), rows, "Inputs and outputs", notes)


def _custom_operators(report: Report) -> Table:
    rows = tuple(
        (line.operator, line.place, line.implementation or "not implemented")
        for line in report.custom_operators
    )
    return Table(("operator", "place", "implemented by"), rows, "Custom operators")


def _graph_stages(report: Report) -> Table:
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
        factors = [(q.large(factor), term) for term, factor in stage.formula.items()]
        formula = ""
        if any(stage.formula):  # else no dimension is dynamic
            formula = " + ".join(f"{n} {q.TIMES} {term}" if term else n for n, term in factors)
        numbers = q.count(stage.weights), q.count(stage.initializers)
        amounts = q.size(stage.initializer_bytes), q.large(stage.macs)
        row = (stage.stage, opsets or q.NOTHING, *numbers, *amounts, formula or q.NOTHING)
        rows.append(row)
    columns = (
        "graph", "opsets", "weights>", "initializers>", "their size>", "MACs>", "MACs by size",
    )  # fmt: skip
    return Table(columns, tuple(rows), "Stages of the graph", tuple(notes))


def _conversions(report: Report) -> Table:
    """List the changes by each conversion."""
    notes, rows = [], []
    for line in report.conversions:
        counts = ", ".join(f"{dtype} {q.count(n)}" for dtype, n in line.initializers.items())
        sizes = f"{q.size(line.bytes_before)} → {q.size(line.bytes_after)}"
        row = (line.precision, line.status, counts or q.NOTHING, q.count(line.casts), sizes)
        rows.append((*row, line.method))
        if line.kept_fp32:
            names = q.first_names(line.kept_fp32, _MOST_NODES)
            notes.append(f"Kept in fp32 in the {line.precision} graph: {names}.")
    columns = ("precision", "status", "initializers", "casts>", "size>", "method")
    return Table(columns, tuple(rows), "Precisions", tuple(notes))


def _searches(report: Report) -> Table:
    """List the nodes that searches kept in fp32, and the latencies that followed."""
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
        if line.engines:
            notes.append(f"p50 of {line.variant} and its rivals: {', '.join(line.engines)}.")
    columns = (
        "search", "nodes in fp32>", "relative error>", "limit of the search>",
        "MACs in low precision>", "trials>",
    )  # fmt: skip
    return Table(columns, tuple(rows), "Mixed precision", tuple(notes))


def _surgery(report: Report) -> Table:
    """List the surgery steps with their checks."""

    def error(step: SurgeryLine) -> str:
        basis = ""
        if step.basis is not None:
            basis = f", itself within {q.error(step.basis)} of the golden outputs"
        return f"{q.error(step.relative)} against {step.against}{basis}"

    def nodes(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{n} {operator}" for operator, n in counts.items()) or q.NOTHING

    rows = tuple(
        (
            step.when.replace("_", " "), step.step, nodes(step.removed), nodes(step.added),
            q.count(step.nodes), error(step),
        )
        for step in report.surgery
    )  # fmt: skip
    columns = ("when", "step", "removed", "added", "nodes>", "worst relative error")
    return Table(columns, rows, "Surgery")


def _files(report: Report) -> Table:
    files = report.provenance.files
    rows = tuple((line.file, q.size(line.size_bytes), line.sha256) for line in files)
    return Table(("file", "size>", "SHA-256"), rows, "Files")


# sections of the page; empty tables are left out
SECTIONS: Mapping[str, tuple[Callable[[Report], Table], ...]] = {
    "gates": (lambda report: Table(GATE_COLUMNS, tuple(map(gate_cells, report.gates))),),
    "commands": (
        lambda report: Table(COMMAND_COLUMNS, tuple(map(command_cells, report.commands))),
    ),
    "gpu": (_gpu_timings, _gpu_states),
    "graph": (
        _operators, _graph_stages, _tensors, _conversions, _searches, _surgery, _custom_operators,
    ),
    "provenance": (
        _files,
        lambda report: Table(
            ("library", "version"), tuple(report.provenance.versions.items()), "Libraries"
        ),
    ),
}  # fmt: skip
