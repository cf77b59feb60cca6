"""The report as Markdown. Nothing is computed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from buildsys.report import formatting as q
from buildsys.report.markdown import measurements
from buildsys.report.markdown.elements import (
    code,
    escape,
    fence,
    section,
    sentence,
    status_text,
    table,
)
from buildsys.report.results.report import GraphHistory, GraphSize, Report, SurgeryLine, TargetLine
from buildsys.system.printable import printable

Lines = Iterator[str]
_FAILED_TITLE = "build failed"
_STAGE_COLUMNS = (
    "graph", "opsets", "weights>", "initializers>", "their size>", "MACs>", "MACs by size",
)  # fmt: skip


def is_failure_report(markdown: str) -> bool:
    """Return True for a rendered report on an unsuccessful run."""
    return markdown.partition("\n")[0].endswith(f": {_FAILED_TITLE}")


def render(report: Report) -> str:
    """Return the whole report as Markdown, ending in a newline."""
    return printable("\n".join(_lines(report))) + "\n"


def _lines(report: Report) -> Lines:
    yield f"# {escape(report.model)}: {_FAILED_TITLE if report.notice else 'build report'}"
    yield from ("", f"**{sentence(report.verdict.text)}**")
    if report.notice:
        yield from ("", sentence(report.notice))
    if report.description:
        yield from ("", escape(report.description))
    yield from _targets(report)
    yield from _build_chain(report)
    yield from _graph(report)
    yield from _surgery_steps(report)
    if report.custom_operators:
        yield from section("## Custom operators")
        rows = [
            (
                code(line.operator),
                escape(line.place),
                code(line.implementation) or "not implemented",
            )
            for line in report.custom_operators
        ]
        yield from table(("operator", "place", "implemented by"), rows)
    yield from measurements.conversions(report)
    yield from measurements.checks(report)
    yield from measurements.engines(report)
    yield from measurements.bench(report)
    if report.warnings:
        yield from section("## Warnings")
        yield from (f"- {escape(warning)}" for warning in report.warnings)
    yield from section("## Run again")
    yield from (
        "```sh",
        f"doit build:{report.model}              # rebuild what is stale",
        f"doit resolve {report.model}            # show the manifest with all defaults",
    )
    yield from (f"doit {line.target}" for line in report.summary if line.status != "passed")
    yield "```"
    yield from _provenance(report)


def _targets(report: Report) -> Lines:
    yield from section("## Targets")
    rows = []
    for line in report.summary:
        outcome, status = escape(line.outcome) or q.NOTHING, status_text(line.status)
        rows.append((code(line.target), status, q.duration(line.seconds), outcome))
    yield from table(("target", "status", "time>", "result"), rows)
    yield ""
    same_reason: dict[tuple[str, str, str], list[TargetLine]] = {}
    for line in report.summary:
        if line.reason:
            same_reason.setdefault((line.status, line.reason, line.hint), []).append(line)
    for (status, reason, hint), lines in same_reason.items():
        targets = ", ".join(code(line.target) for line in lines)
        yield f"- {targets} — {status_text(status)}: {sentence(reason)}"
        if "\n" in hint:  # a list, with YAML to copy
            listed = (f"  {line}" for line in hint.splitlines())
            mark = fence(hint, 3)
            yield from ("  What to do:", "", f"  {mark}text", *listed, f"  {mark}", "")
        elif hint:
            yield f"  What to do: {sentence(hint)}"
        if status == "failed":
            yield f"  Log: {', '.join(code(line.log) for line in lines)}."


def _build_chain(report: Report) -> Lines:
    yield from section("## Build chain")
    yield "Paths are relative to the model's folder, the parent of this report's folder."
    yield ""
    history = report.graph
    parameters = history.parameters
    counted = f", {q.count(parameters)} parameters" if parameters is not None else ""
    yield f"- model: {code(report.source)}, weights {escape(report.weights)}{counted}"
    exporter = "exporter not recorded"
    if history.exporter:
        versions = f"opset {history.opset}, IR version {history.ir_version}"
        exporter = f"{escape(history.exporter)}, {versions}"
    yield f"- export: {code('export/model.onnx')}, {exporter}{_sized(history.exported)}"
    yield from _surgery(report, "after_export")
    tool = escape(history.tool or "a tool not recorded")
    yield f"- simplify: {code('simplify/model.onnx')}, by {tool}{_sized(history.simplified)}"
    yield from _surgery(report, "after_simplify")
    for made in report.conversions:
        how = escape(made.method) or status_text(made.status)
        yield f"- convert: {code(f'convert/{made.precision}/model.onnx')}, {how}"
    changed = any(step.when == "after_simplify" for step in report.surgery)
    for engine in report.engines:
        source = f"convert/{engine.precision}"
        if engine.precision in ("fp32", ""):
            source = "surgery/after_simplify" if changed else "simplify"
        text = f"- engine {code(engine.name)} ({escape(f'{engine.backend}, {engine.precision}')})"
        text += f": from {code(f'{source}/model.onnx')}"
        if engine.toolchain and engine.built == "passed":
            text += f", built in the toolchain {escape(engine.toolchain)}"
        yield text
    if report.tensors:
        rows = [
            (
                escape(t.role),
                code(t.name),
                escape(t.dtype),
                escape(f" {q.TIMES} ".join(t.shape)) or "scalar",
            )
            for t in report.tensors
        ]
        yield from ("", *table(("tensor", "name", "dtype", "shape"), rows))
    for name, span in report.dims.items():
        yield from ("", f"Dimension {code(name)}: {escape(span)}.")


def _surgery(report: Report, when: str) -> Lines:
    steps = [step for step in report.surgery if step.when == when]
    if steps:
        counts = f"{q.plural(len(steps), 'step')}, {q.nodes(steps[-1].nodes)}"
        yield f"- surgery: {code(f'surgery/{when}/model.onnx')}, {counts}"


def _sized(size: GraphSize | None) -> str:
    return f", {q.nodes(size.nodes)}, {q.size(size.size_bytes)}" if size else ""


def _graph(report: Report) -> Lines:
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
    yield from (f"- {escape(line)}" for line in graph.folded)
    yield from _stages(graph)
    if graph.modules:
        columns = ("PyTorch modules", "modules>", "operator", "exported>", "simplified>")
        modules = [
            (
                escape(", ".join(each.modules)),
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


def _surgery_steps(report: Report) -> Lines:
    """Yield the surgery steps with their checks."""
    if not report.surgery:
        return

    def error(step: SurgeryLine) -> str:
        basis = ""
        if step.basis is not None:
            basis = f", itself within {q.error(step.basis)} of the golden outputs"
        return f"{q.error(step.relative)} against {escape(step.against)}{basis}"

    def nodes(counts: Mapping[str, int]) -> str:
        return ", ".join(f"{n} {escape(operator)}" for operator, n in counts.items()) or q.NOTHING

    yield from section("## Surgery")
    rows = [
        (
            step.when.replace("_", " "),
            code(step.step),
            nodes(step.removed),
            nodes(step.added),
            q.count(step.nodes),
            error(step),
        )
        for step in report.surgery
    ]
    columns = ("when", "step", "removed", "added", "nodes>", "worst relative error")
    yield from table(columns, rows)


def _stages(graph: GraphHistory) -> Lines:
    if not graph.stages:
        return
    if any(stage.macs for stage in graph.stages):
        sizes = ", ".join(f"{escape(name)} = {size}" for name, size in graph.macs_at.items())
        counted = "multiply-accumulates of convolutions, matrix products and recurrent layers"
        yield f"- MACs{f' at {sizes}' if sizes else ''}: {counted}."
    for stage in graph.stages:
        if stage.not_counted:
            counts = stage.not_counted.items()
            names = ", ".join(f"{code(name)} {q.TIMES}{number}" for name, number in counts)
            yield f"- The MACs of {stage.stage} are unknown, because {names} cannot be counted."
    rows = []
    for stage in graph.stages:
        opsets = ", ".join(f"{domain} {version}" for domain, version in stage.opsets.items())
        factors = [(q.large(factor), term) for term, factor in stage.formula.items()]
        formula = ""
        if any(stage.formula):  # else no dimension is dynamic
            formula = " + ".join(f"{n} {q.TIMES} {term}" if term else n for n, term in factors)
        numbers = q.count(stage.weights), q.count(stage.initializers)
        amounts = q.size(stage.initializer_bytes), q.large(stage.macs)
        texts = escape(opsets) or q.NOTHING, escape(formula) or q.NOTHING
        rows.append((stage.stage, texts[0], *numbers, *amounts, texts[1]))
    yield from ("", *table(_STAGE_COLUMNS, rows))


def _difference(graph: GraphHistory) -> str:
    changes = [
        (line.operator, (line.simplified or 0) - (line.exported or 0)) for line in graph.operators
    ]
    removed = ", ".join(
        f"{-change} {escape(operator)}" for operator, change in changes if change < 0
    )
    added = ", ".join(f"{change} {escape(operator)}" for operator, change in changes if change > 0)
    parts = [f"{verb} {names}" for verb, names in (("removed", removed), ("added", added)) if names]
    return f" ({'; '.join(parts)})" if parts else ""


def _provenance(report: Report) -> Lines:
    facts = report.provenance
    yield from section("## Provenance")
    yield f"- first stage started: {escape(facts.started) or 'not recorded'}"
    yield f"- SHA-256 of the resolved manifest: {code(facts.manifest_sha256)}"
    yield from (f"- {escape(device)}" for device in facts.devices)
    if facts.files:
        files = [
            (code(line.file), q.size(line.size_bytes), code(line.sha256)) for line in facts.files
        ]
        yield from ("", *table(("file", "size>", "SHA-256"), files))
    if facts.versions:
        versions = [(escape(name), escape(text)) for name, text in facts.versions.items()]
        yield from ("", *table(("library", "version"), versions))
    manifest = json.dumps(facts.manifest, indent=2, ensure_ascii=False).splitlines()
    yield from ("", "### Resolved manifest", "", "```json", *manifest, "```")
