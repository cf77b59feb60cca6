"""The report as Markdown for people. It words what the report holds and works nothing out by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from buildsys.report import formatting as q
from buildsys.report.markdown import measurements as numbers
from buildsys.report.markdown.elements import code, escape, sentence, table
from buildsys.report.results.report import (
    Graph,
    GraphSize,
    GraphStage,
    ModuleCount,
    Report,
    SurgeryStep,
    TargetLine,
)
from buildsys.report.verdict import status_word

Lines = Iterator[str]
_STAGE_COLUMNS = (
    "graph",
    "opsets",
    "weights>",
    "initializers>",
    "their size>",
    "MACs>",
    "MACs by size",
)
_FAILED_TITLE = "the build did not get through"


def is_of_a_failure(markdown: str) -> bool:
    """Return whether a rendered report is one of a run that did not get through."""
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
    yield from _summary(report)
    yield from _chain(report)
    yield from _graph(
        report.graph, "Surgery and simplification" if report.surgery else "Simplification"
    )
    yield from _surgery(report.surgery)
    yield from _custom_operators(report)
    yield from numbers.conversions(report)
    yield from numbers.checks(report)
    yield from numbers.engines(report)
    yield from numbers.bench(report)
    yield from _warnings(report)
    yield from _rerun(report)
    yield from _provenance(report)


def _summary(report: Report) -> Lines:
    yield from ("", "## What ran", "")
    rows = [
        (
            code(line.target),
            status_word(line.status),
            q.duration(line.seconds),
            escape(line.outcome) or q.NOTHING,
        )
        for line in report.summary
    ]
    yield from table(("target", "status", "took>", "result"), rows)
    yield ""
    alike: dict[tuple[str, str, str], list[TargetLine]] = {}
    for line in report.summary:
        if line.reason:
            alike.setdefault((line.status, line.reason, line.hint), []).append(line)
    for lines in alike.values():
        yield from _why(lines)


def _why(lines: Sequence[TargetLine]) -> Lines:
    """Yield the reason that all these targets share, and what to do about it."""
    first = lines[0]
    yield f"- {', '.join(code(line.target) for line in lines)} — {status_word(first.status)}: {sentence(first.reason)}"
    if "\n" in first.hint:  # a list, with YAML to copy
        yield from (
            "  What to do:",
            "",
            "  ```text",
            *(f"  {line}" for line in first.hint.splitlines()),
            "  ```",
            "",
        )
    elif first.hint:
        yield f"  What to do: {sentence(first.hint)}"
    if first.status == "failed":
        yield f"  Log: {', '.join(code(line.log) for line in lines)}."


def _chain(report: Report) -> Lines:
    yield from ("", "## What was built from what", "")
    yield from ("Paths are relative to the model's folder, one above this report's.", "")
    graph = report.graph
    yield f"- model: {code(report.source)}, weights {escape(report.weights)}" + _parameters(graph)
    yield f"- export: {code('export/model.onnx')}, {escape(_exporter(graph))}{_sized(graph.exported)}"
    yield from _changed(report, "after_export")
    yield (
        f"- simplify: {code('simplify/model.onnx')}, by {escape(graph.tool or 'a tool not recorded')}"
        + _sized(graph.simplified)
    )
    yield from _changed(report, "after_simplify")
    last = (
        "surgery/after_simplify"
        if any(step.when == "after_simplify" for step in report.surgery)
        else "simplify"
    )
    for made in report.conversions:
        how = escape(made.method) or status_word(made.status)
        yield f"- convert: {code(f'convert/{made.precision}/model.onnx')}, {how}"
    for engine in report.engines:
        origin = last if engine.precision in ("fp32", "") else f"convert/{engine.precision}"
        kind = f"{engine.backend}, {engine.precision}"
        by = (
            f", built in the toolchain {escape(engine.toolchain)}"
            if engine.toolchain and engine.built == "passed"
            else ""
        )
        yield f"- engine {code(engine.name)} ({kind}): from {code(f'{origin}/model.onnx')}{by}"
    if report.tensors:
        rows = [
            (t.role, code(t.name), t.dtype, f" {q.TIMES} ".join(t.shape) or "scalar")
            for t in report.tensors
        ]
        yield from ("", *table(("tensor", "name", "dtype", "shape"), rows))
    for name, span in report.dims.items():
        yield from ("", f"Dimension {code(name)}: {span}.")


def _changed(report: Report, when: str) -> Lines:
    steps = [step for step in report.surgery if step.when == when]
    if steps:
        count = f"{len(steps)} step{'s' * (len(steps) != 1)}"
        yield f"- surgery: {code(f'surgery/{when}/model.onnx')}, {count}, {q.nodes(steps[-1].nodes)}"


def _parameters(graph: Graph) -> str:
    return f", {q.count(graph.parameters)} parameters" if graph.parameters is not None else ""


def _exporter(graph: Graph) -> str:
    if not graph.exporter:
        return "exporter not recorded"
    return f"{graph.exporter}, opset {graph.opset}, IR version {graph.ir_version}"


def _sized(size: GraphSize | None) -> str:
    return f", {q.nodes(size.nodes)}, {q.size(size.size_bytes)}" if size else ""


def _graph(graph: Graph, by: str) -> Lines:
    yield from ("", "## Graph before and after", "")
    if not graph.operators:
        yield "No graph was recorded."
        return
    if graph.exported and graph.simplified:
        before, after = q.count(graph.exported.nodes), q.nodes(graph.simplified.nodes)
        yield f"- {by}: {before} → {after}{_difference(graph)}."
    yield from (f"- {fact}" for fact in graph.folded)
    yield from _stages(graph)
    if graph.modules:
        columns = ("PyTorch modules", "modules>", "operator", "exported>", "simplified>")
        yield from ("", *table(columns, map(_module, graph.modules)))
    rows = [
        (
            code(line.operator),
            q.count(line.exported),
            q.count(line.simplified),
            _change(line.exported, line.simplified),
        )
        for line in graph.operators
    ]
    yield from ("", *table(("operator", "exported>", "simplified>", "change>"), rows))


def _custom_operators(report: Report) -> Lines:
    if not report.custom_operators:
        return
    yield from ("", "## Custom operators", "")
    rows = [
        (
            code(line.operator),
            escape(line.place),
            code(line.implementation) or "nothing implements it",
        )
        for line in report.custom_operators
    ]
    yield from table(("operator", "where", "implemented by"), rows)


def _stages(graph: Graph) -> Lines:
    if not graph.stages:
        return
    if any(stage.macs for stage in graph.stages):
        sizes = ", ".join(f"{name} = {size}" for name, size in graph.macs_at.items())
        counted = "multiply-accumulates of convolutions, matrix products and recurrent layers"
        yield f"- MACs{f' at {sizes}' if sizes else ''}: {counted}."
    for stage in graph.stages:
        if stage.not_counted:
            yield f"- The MACs of {stage.stage} are not known: {_counts(stage.not_counted)} cannot be counted."
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
    """Return e.g. 4.09 G times batch; nothing where no dimension is dynamic."""
    if not any(terms):
        return ""
    parts = (
        f"{q.large(factor)} {q.TIMES} {term}" if term else q.large(factor)
        for term, factor in terms.items()
    )
    return " + ".join(parts)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{code(name)} {q.TIMES}{number}" for name, number in counts.items())


def _surgery(steps: Sequence[SurgeryStep]) -> Lines:
    if not steps:
        return
    yield from ("", "## Surgery", "")
    rows = [
        (
            step.when.replace("_", " "),
            code(step.step),
            _nodes(step.removed),
            _nodes(step.added),
            q.count(step.nodes),
            _checked(step),
        )
        for step in steps
    ]
    yield from table(("when", "step", "gone", "come", "nodes>", "worst relative error"), rows)


def _checked(step: SurgeryStep) -> str:
    basis = (
        "" if step.basis is None else f", which gives the golden outputs to {q.error(step.basis)}"
    )
    return f"{q.error(step.relative)} against {escape(step.against)}{basis}"


def _nodes(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} {escape(operator)}" for operator, count in counts.items()) or q.NOTHING
    )


def _difference(graph: Graph) -> str:
    changes = [
        (line.operator, (line.simplified or 0) - (line.exported or 0)) for line in graph.operators
    ]
    gone = [f"{-change} {operator}" for operator, change in changes if change < 0]
    new = [f"{change} {operator}" for operator, change in changes if change > 0]
    told = [
        f"{verb} {', '.join(names)}" for verb, names in (("removed", gone), ("added", new)) if names
    ]
    return f" ({'; '.join(told)})" if told else ""


def _module(line: ModuleCount) -> tuple[str, ...]:
    operators = " or ".join(line.operators)
    return (
        ", ".join(line.modules),
        q.count(line.count),
        code(operators),
        q.count(line.exported),
        q.count(line.simplified),
    )


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return q.NOTHING
    return f"{after - before:+d}" if after != before else "0"


def _warnings(report: Report) -> Lines:
    if report.warnings:
        yield from ("", "## Warnings", "")
        yield from (f"- {escape(warning)}" for warning in report.warnings)


def _rerun(report: Report) -> Lines:
    yield from ("", "## Run it again", "")
    yield from (
        "```sh",
        f"doit build:{report.model}              # only what changed",
        f"doit resolve {report.model}            # the manifest with all defaults",
    )
    yield from (f"doit {line.target}" for line in report.summary if line.status != "passed")
    yield "```"


def _provenance(report: Report) -> Lines:
    facts = report.provenance
    yield from ("", "## Provenance", "")
    yield f"- first stage started: {facts.started or 'not recorded'}"
    yield f"- manifest as resolved, sha256: {code(facts.manifest_sha256)}"
    yield from (f"- {escape(device)}" for device in facts.devices)
    if facts.files:
        rows = [
            (code(line.file), q.size(line.size_bytes), code(line.sha256)) for line in facts.files
        ]
        yield from ("", *table(("file", "size>", "sha256"), rows))
    if facts.versions:
        yield from (
            "",
            *table(
                ("library", "version"),
                [(name, escape(text)) for name, text in facts.versions.items()],
            ),
        )
    yield from ("", "### Resolved manifest", "", "```json", *_manifest(report), "```")


def _manifest(report: Report) -> Iterable[str]:
    return json.dumps(report.provenance.manifest, indent=2, ensure_ascii=False).splitlines()
