"""Tables of the page of a model. Cells are plain text, escaped by the templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buildsys.onnx_graphs.result_types import AgreementFigures
from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.commands import COLUMNS as COMMAND_COLUMNS
from buildsys.report.commands import command_cells
from buildsys.report.gates import COLUMNS, gate_cells
from buildsys.report.ranking import COLUMNS as RANKING_COLUMNS
from buildsys.report.ranking import ranking_cells, ranking_notes
from buildsys.report.results.report import Check, ComparisonLine, GraphHistory, Report, SurgeryLine

MOST_COMPARISONS = 64
_MOST_FAILURES = 20
_WITHIN = {True: "yes", False: "NO", None: q.NOTHING}  # the limits
_LIMIT_TEXT = {
    "rtol": "relative error at most {}",
    "cosine": "cosine at least {}",
    "atol": "absolute error at most {}",
    "top1": "top-1 agreement at least {}",
    "spread_error": "error at most {} of the spread",
    "correlation": "correlation at least {}",
    "slope": "slope within {} of 1",
    "channel_error": "error of a channel at most {} of its spread",
    "class_agreement": "class agreement at least {}",
}


@dataclass(frozen=True)
class Table:
    """A table; columns ending in ``>`` are aligned right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()


def gates(report: Report) -> Table:
    """Return the gates of all engines."""
    return Table(COLUMNS, tuple(map(gate_cells, report.gates)), "Gates")


def commands(report: Report) -> Table:
    """Return the figures of all commands."""
    return Table(COMMAND_COLUMNS, tuple(map(command_cells, report.commands)), "Commands")


def ranking(report: Report) -> Table:
    """Return the ranked engines, the one to ship first."""
    found = report.ranking
    if found is None:
        return Table((), ())
    rows = tuple(ranking_cells(found, one) for one in found.ranked)
    return Table(RANKING_COLUMNS, rows, notes=tuple(ranking_notes(found)))


def limits(check: Check) -> str:
    """Return the limits of a check in words, "" without any."""
    return ", ".join(
        text.format(f"{check.limits[name]:g}")
        for name, text in _LIMIT_TEXT.items()
        if name in check.limits
    )


def comparisons(check: Check) -> Table:
    """Return the worst comparisons of a check."""

    def badness(line: ComparisonLine) -> tuple[bool, bool, float]:
        relative = line.relative or 0.0
        return line.passed is False, relative != relative, relative

    def figures(line: ComparisonLine) -> tuple[str, ...]:
        if line.uninformative:  # its error of 0 means nothing
            return (*[q.NOTHING] * 4, "not informative")
        errors = q.error(line.max_abs), q.error(line.relative), q.cosine(line.cosine)
        return (*errors, q.share(line.top1), _WITHIN[line.passed])

    found = check.comparisons
    worst = sorted(found, key=badness, reverse=True)[:MOST_COMPARISONS]
    shown = [line for line in found if line in worst] if len(found) > MOST_COMPARISONS else found
    remarks: dict[str, list[str]] = {}  # remark -> cases
    for line in found:
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
    if len(shown) < len(found):
        text = f"The {len(shown)} worst of {len(found)} comparisons; report.json has all of them."
        notes.insert(0, text)
    rows = tuple(
        (
            line.subject,
            line.case + (f" ({line.dims})" if line.dims and "=" not in line.case else ""),
            line.output,
            *figures(line),
        )
        for line in shown
    )
    columns = (
        "graph or engine", "case", "output", "max abs error>", "relative error>", "cosine>",
        "top-1>", "within limits",
    )  # fmt: skip
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
    """Return the worst element of each failed comparison."""
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


def gpu_timings(report: Report) -> Table:
    """Return throughput and memory on the GPU."""
    columns = (
        "engine", "case", "contender", "GPU p50 (ms)>", "p99 (ms)>", "wall p50 (ms)>",
        "p99 (ms)>",
        "items/s>", "queued>", "context>", "memory>",
    )  # fmt: skip
    rows = []
    for line in report.gpu_timings:
        times = (line.gpu_p50_ms, line.gpu_p99_ms, line.wall_p50_ms, line.wall_p99_ms)
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


def gpu_states(report: Report) -> Table:
    """Return clocks, power, temperature and throttling during the measurements."""
    columns = (
        "engine", "case", "SM clock>", "memory clock>", "power>", "temperature>", "readings>",
        "throttled",
    )  # fmt: skip
    rows = []
    for state in report.gpu_states:
        spans = (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c)
        shown = (span or q.NOTHING for span in spans)
        rows.append((state.engine, state.case, *shown, q.count(state.readings), state.throttle))
    notes = ("Smallest, median and largest reading during the measurement.",)
    return Table(columns, tuple(rows), "Clocks, power and throttling", notes)


def graph_stages(graph: GraphHistory) -> Table:
    """Return sizes and multiply-accumulates of the graph at every stage."""
    notes = []
    if any(stage.macs for stage in graph.stages):
        sizes = ", ".join(f"{name} = {size}" for name, size in graph.macs_at.items())
        counted = "multiply-accumulates of convolutions, matrix products and recurrent layers"
        notes.append(f"MACs{f' at {sizes}' if sizes else ''}: {counted}.")
    rows = []
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


def operators(graph: GraphHistory) -> Table:
    """Return the nodes of each operator before and after simplification."""
    rows = []
    for line in graph.operators:
        change = q.NOTHING
        if line.exported is not None and line.simplified is not None:
            change = f"{line.simplified - line.exported:+d}".replace("+0", "0")
        rows.append((line.operator, q.count(line.exported), q.count(line.simplified), change))
    return Table(("operator", "exported>", "simplified>", "change>"), tuple(rows), "Operators")


def modules(graph: GraphHistory) -> Table:
    """Return PyTorch modules and their nodes."""
    rows = tuple(
        (
            ", ".join(each.modules), q.count(each.count), " or ".join(each.operators),
            q.count(each.exported), q.count(each.simplified),
        )
        for each in graph.modules
    )  # fmt: skip
    columns = ("PyTorch modules", "modules>", "operator", "exported>", "simplified>")
    return Table(columns, rows, "Modules", graph.folded)


def tensors(report: Report) -> Table:
    """Return inputs and outputs of the final graph, with the dynamic dimensions."""
    rows = tuple(
        (t.role, t.name, t.dtype, f" {q.TIMES} ".join(t.shape) or "scalar") for t in report.tensors
    )
    notes = tuple(f"{name}: {span}" for name, span in report.dims.items())
    return Table(("tensor", "name", "dtype", "shape"), rows, "Inputs and outputs", notes)


def conversions(report: Report) -> Table:
    """Return the changes by each conversion."""
    notes, rows = [], []
    for made in report.conversions:
        counts = ", ".join(f"{dtype} {q.count(n)}" for dtype, n in made.initializers.items())
        sizes = f"{q.size(made.bytes_before)} → {q.size(made.bytes_after)}"
        row = (made.precision, made.status, counts or q.NOTHING, q.count(made.casts), sizes)
        rows.append((*row, made.method))
        if made.kept_fp32:
            names = q.first_names(list(made.kept_fp32), 12)
            notes.append(f"Kept in fp32 in the {made.precision} graph: {names}.")
    columns = ("precision", "status", "initializers", "casts>", "size>", "method")
    return Table(columns, tuple(rows), "Precisions", tuple(notes))


def searches(report: Report) -> Table:
    """Return the nodes that searches kept in fp32, and the latencies that followed."""
    rows, notes = [], []
    for line in report.searches:
        kept = "all" if line.is_fp32 else f"{len(line.kept)} of {q.count(line.candidates)}"
        errors = f"{q.error(line.error_without)} → {q.error(line.error_with)}"
        share = q.NOTHING if line.macs_low is None else q.percent(line.macs_low)
        limit = q.NOTHING if line.rtol is None else f"{line.rtol:.3g}"
        rows.append((line.variant, kept, errors, limit, share, q.count(line.trials)))
        if line.is_fp32:
            notes.append(f"No choice of nodes in {line.precision} is within the limits.")
        elif line.kept:
            names = q.first_names([name for name, *_ in line.kept], 12)
            why = (
                "without any of them it exceeds the limits"
                if line.is_smallest
                else "perhaps more than needed"
            )
            notes.append(f"In fp32 for {line.variant}: {names}; {why}.")
        timed = [
            f"{one.engine} ({one.precision}) {q.latency(one.p50_ms, noisy=one.noisy)} ms"
            + (" NOISY" if one.noisy else "")
            for one in line.engines
            if one.p50_ms is not None
        ]
        notes += [f"p50 of {line.variant} and its rivals: {', '.join(timed)}."] if timed else []
    columns = (
        "search", "nodes in fp32>", "relative error>", "limit of the search>",
        "MACs in low precision>", "trials>",
    )  # fmt: skip
    return Table(columns, tuple(rows), "Mixed precision", tuple(notes))


def surgery(report: Report) -> Table:
    """Return the surgery steps with their checks."""

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


def custom_operators(report: Report) -> Table:
    """Return the implementation of each custom operator."""
    rows = tuple(
        (line.operator, line.place, line.implementation or "not implemented")
        for line in report.custom_operators
    )
    return Table(("operator", "place", "implemented by"), rows, "Custom operators")


def files(report: Report) -> Table:
    """Return the digests of graph and engines."""
    rows = tuple(
        (line.file, q.size(line.size_bytes), line.sha256) for line in report.provenance.files
    )
    return Table(("file", "size>", "SHA-256"), rows, "Files")


def versions(report: Report) -> Table:
    """Return the versions of all libraries in use."""
    return Table(("library", "version"), tuple(report.provenance.versions.items()), "Libraries")
