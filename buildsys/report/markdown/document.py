"""The report as Markdown. Nothing is computed here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from buildsys.report import formatting as q
from buildsys.report.markdown import graph, measurements
from buildsys.report.markdown.elements import code, escape, section, sentence, table
from buildsys.report.results.report import EngineLine, GraphSize, Report, TargetLine
from buildsys.report.verdict import status_text

Lines = Iterator[str]
_FAILED_TITLE = "build failed"


def is_failure_report(markdown: str) -> bool:
    """Return True for a rendered report on an unsuccessful run."""
    return markdown.partition("\n")[0].endswith(f": {_FAILED_TITLE}")


def render(report: Report) -> str:
    """Return the whole report as Markdown, ending in a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Lines:
    yield f"# {escape(report.model)}: {_FAILED_TITLE if report.notice else 'build report'}"
    yield from ("", f"**{sentence(report.verdict.text)}**")
    if report.notice:
        yield from ("", sentence(report.notice))
    if report.description:
        yield from ("", escape(report.description))
    yield from _targets(report)
    yield from _build_chain(report)
    yield from graph.operators(report)
    yield from graph.surgery(report.surgery)
    yield from _custom_operators(report)
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
    for lines in same_reason.values():
        yield from _reason(lines)


def _reason(lines: Sequence[TargetLine]) -> Lines:
    """Yield the common reason and remedy of targets."""
    first = lines[0]
    targets = ", ".join(code(line.target) for line in lines)
    yield f"- {targets} — {status_text(first.status)}: {sentence(first.reason)}"
    if "\n" in first.hint:  # a list, with YAML to copy
        hint = (f"  {line}" for line in first.hint.splitlines())
        yield from ("  What to do:", "", "  ```text", *hint, "  ```", "")
    elif first.hint:
        yield f"  What to do: {sentence(first.hint)}"
    if first.status == "failed":
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
    yield from (_engine(report, engine) for engine in report.engines)
    if report.tensors:
        rows = [
            (t.role, code(t.name), t.dtype, f" {q.TIMES} ".join(t.shape) or "scalar")
            for t in report.tensors
        ]
        yield from ("", *table(("tensor", "name", "dtype", "shape"), rows))
    for name, span in report.dims.items():
        yield from ("", f"Dimension {code(name)}: {span}.")


def _engine(report: Report, engine: EngineLine) -> str:
    changed = any(step.when == "after_simplify" for step in report.surgery)
    source = f"convert/{engine.precision}"
    if engine.precision in ("fp32", ""):
        source = "surgery/after_simplify" if changed else "simplify"
    text = f"{code(engine.name)} ({engine.backend}, {engine.precision})"
    text = f"- engine {text}: from {code(f'{source}/model.onnx')}"
    if engine.toolchain and engine.built == "passed":
        text += f", built in the toolchain {escape(engine.toolchain)}"
    return text


def _surgery(report: Report, when: str) -> Lines:
    steps = [step for step in report.surgery if step.when == when]
    if steps:
        counts = f"{q.plural(len(steps), 'step')}, {q.nodes(steps[-1].nodes)}"
        yield f"- surgery: {code(f'surgery/{when}/model.onnx')}, {counts}"


def _sized(size: GraphSize | None) -> str:
    return f", {q.nodes(size.nodes)}, {q.size(size.size_bytes)}" if size else ""


def _custom_operators(report: Report) -> Lines:
    if not report.custom_operators:
        return
    yield from section("## Custom operators")
    rows = [
        (code(line.operator), escape(line.place), code(line.implementation) or "not implemented")
        for line in report.custom_operators
    ]
    yield from table(("operator", "place", "implemented by"), rows)


def _provenance(report: Report) -> Lines:
    facts = report.provenance
    yield from section("## Provenance")
    yield f"- first stage started: {facts.started or 'not recorded'}"
    yield f"- SHA-256 of the resolved manifest: {code(facts.manifest_sha256)}"
    yield from (f"- {escape(device)}" for device in facts.devices)
    if facts.files:
        files = [
            (code(line.file), q.size(line.size_bytes), code(line.sha256)) for line in facts.files
        ]
        yield from ("", *table(("file", "size>", "SHA-256"), files))
    if facts.versions:
        versions = [(name, escape(text)) for name, text in facts.versions.items()]
        yield from ("", *table(("library", "version"), versions))
    manifest = json.dumps(facts.manifest, indent=2, ensure_ascii=False).splitlines()
    yield from ("", "### Resolved manifest", "", "```json", *manifest, "```")
