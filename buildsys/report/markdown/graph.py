"""The Markdown sections on the graph: operators, modules, stages and surgery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from buildsys.report import formatting as q
from buildsys.report.markdown.elements import code, escape, section, table
from buildsys.report.results.report import GraphHistory, GraphStage, Report, SurgeryLine

Lines = Iterator[str]
_STAGE_COLUMNS = (
    "graph", "opsets", "weights>", "initializers>", "their size>", "MACs>", "MACs by size",
)  # fmt: skip


def operators(report: Report) -> Lines:
    """Yield the graph before and after simplification, operator by operator."""
    graph = report.graph
    yield from section("## Graph before and after")
    if not graph.operators:
        yield "No graph was recorded."
        return
    if graph.exported and graph.simplified:
        by = "Surgery and simplification" if report.surgery else "Simplification"
        before, after = q.count(graph.exported.nodes), q.nodes(graph.simplified.nodes)
        yield f"- {by}: {before} → {after}{_difference(graph)}."
    yield from (f"- {sentence}" for sentence in graph.folded)
    yield from _stages(graph)
    if graph.modules:
        columns = ("PyTorch modules", "modules>", "operator", "exported>", "simplified>")
        modules = [
            (
                ", ".join(each.modules),
                q.count(each.count),
                code(" or ".join(each.operators)),
                q.count(each.exported),
                q.count(each.simplified),
            )
            for each in graph.modules
        ]
        yield from ("", *table(columns, modules))
    rows = []
    for line in graph.operators:
        change = q.NOTHING
        if line.exported is not None and line.simplified is not None:
            difference = line.simplified - line.exported
            change = f"{difference:+d}" if difference else "0"
        counts = q.count(line.exported), q.count(line.simplified)
        rows.append((code(line.operator), *counts, change))
    yield from ("", *table(("operator", "exported>", "simplified>", "change>"), rows))


def surgery(steps: Sequence[SurgeryLine]) -> Lines:
    """Yield the surgery steps with their checks."""
    if not steps:
        return

    def error(step: SurgeryLine) -> str:
        basis = ""
        if step.basis is not None:
            basis = f", itself within {q.error(step.basis)} of the golden outputs"
        return f"{q.error(step.relative)} against {escape(step.against)}{basis}"

    yield from section("## Surgery")
    rows = [
        (
            step.when.replace("_", " "),
            code(step.step),
            _nodes(step.removed),
            _nodes(step.added),
            q.count(step.nodes),
            error(step),
        )
        for step in steps
    ]
    columns = ("when", "step", "removed", "added", "nodes>", "worst relative error")
    yield from table(columns, rows)


def _stages(graph: GraphHistory) -> Lines:
    if not graph.stages:
        return
    if any(stage.macs for stage in graph.stages):
        sizes = ", ".join(f"{name} = {size}" for name, size in graph.macs_at.items())
        counted = "multiply-accumulates of convolutions, matrix products and recurrent layers"
        yield f"- MACs{f' at {sizes}' if sizes else ''}: {counted}."
    for stage in graph.stages:
        if stage.not_counted:
            counts = stage.not_counted.items()
            names = ", ".join(f"{code(name)} {q.TIMES}{number}" for name, number in counts)
            yield f"- The MACs of {stage.stage} are unknown, because {names} cannot be counted."
    yield from ("", *table(_STAGE_COLUMNS, map(_stage, graph.stages)))


def _stage(stage: GraphStage) -> tuple[str, ...]:
    opsets = ", ".join(f"{domain} {version}" for domain, version in stage.opsets.items())
    return (
        stage.stage,
        escape(opsets) or q.NOTHING,
        q.count(stage.weights),
        q.count(stage.initializers),
        q.size(stage.initializer_bytes),
        q.large(stage.macs),
        escape(_formula(stage.formula)) or q.NOTHING,
    )


def _formula(terms: Mapping[str, int]) -> str:
    """Return e.g. 4.09 G times batch; "" if no dimension is dynamic."""
    if not any(terms):
        return ""
    factors = ((q.large(factor), term) for term, factor in terms.items())
    return " + ".join(f"{factor} {q.TIMES} {term}" if term else factor for factor, term in factors)


def _nodes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {escape(operator)}" for operator, n in counts.items()) or q.NOTHING


def _difference(graph: GraphHistory) -> str:
    changes = [
        (line.operator, (line.simplified or 0) - (line.exported or 0)) for line in graph.operators
    ]
    removed = ", ".join(f"{-change} {operator}" for operator, change in changes if change < 0)
    added = ", ".join(f"{change} {operator}" for operator, change in changes if change > 0)
    parts = [f"{verb} {names}" for verb, names in (("removed", removed), ("added", added)) if names]
    return f" ({'; '.join(parts)})" if parts else ""
