"""The graph in the report: operators, folding, surgery, precisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from buildsys.report.report_types import (
    ConversionLine,
    GraphHistory,
    GraphSize,
    GraphStage,
    ModuleCount,
    OperatorCount,
    SurgeryLine,
)
from buildsys.report.result_files import Result
from buildsys.stages.convert.result import ConvertResult
from buildsys.stages.export.result import ExportResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.surgery.result import SurgeryResult

Counts = Mapping[str, int]
# modules that are one node each unless they are folded or decomposed
_NODE_OF_MODULE = {
    "Conv1d": ("Conv",), "Conv2d": ("Conv",), "Conv3d": ("Conv",),
    "ConvTranspose1d": ("ConvTranspose",), "ConvTranspose2d": ("ConvTranspose",),
    "ConvTranspose3d": ("ConvTranspose",),
    "BatchNorm1d": ("BatchNormalization",), "BatchNorm2d": ("BatchNormalization",),
    "BatchNorm3d": ("BatchNormalization",), "SyncBatchNorm": ("BatchNormalization",),
    "Linear": ("Gemm", "MatMul"), "Dropout": ("Dropout",),
}  # fmt: skip
_BATCH_NORM = ("BatchNormalization",)


def graph_history(
    export: ExportResult,
    simplify: SimplifyResult,
    graphs: Mapping[str, Mapping[str, Any]],
    dims: Counts,
    *,
    has_surgery: bool = False,
) -> GraphHistory:
    """Collect the graph's sizes and counts at every stage.

    ``graphs`` are the facts of the written graphs by target, ``dims`` the sizes for which
    multiply-accumulates are counted. After surgery, missing nodes were not all simplified away.
    """
    before = simplify.get("before")
    exported = export if "operators" in export else before
    simplified = simplify.get("after")
    old = exported.get("operators") if exported else None
    new = simplified.get("operators") if simplified else None
    sizes = [
        GraphSize(nodes=graph.get("nodes"), size_bytes=graph.get("bytes")) if graph else None
        for graph in (exported, simplified)
    ]
    names = sorted({*(old or {}), *(new or {})})
    counts = [OperatorCount(name, _of(old, (name,)), _of(new, (name,))) for name in names]
    if new is not None:  # the largest changes first
        counts.sort(key=lambda line: -abs((line.simplified or 0) - (line.exported or 0)))
    modules = tuple(_modules(export.get("modules", {}), old, new))
    return GraphHistory(
        exporter=export.get("exporter", ""),
        opset=export.get("opset"),
        ir_version=export.get("ir_version"),
        parameters=export.get("parameters"),
        tool=simplify.get("tool", ""),
        exported=sizes[0],
        simplified=sizes[1],
        operators=tuple(counts),
        modules=modules,
        folded=tuple(_folded(modules, has_surgery=has_surgery)),
        stages=tuple(_stage(target, facts) for target, facts in graphs.items()),
        macs_at=dims,
    )


def surgery_lines(result: Result[SurgeryResult]) -> Iterator[SurgeryLine]:
    """Yield the completed steps of one surgery target."""
    for step in result.content.get("steps", []):
        errors = [
            float("nan") if (relative := comparison.get("relative")) is None else relative
            for outputs in step.get("cases", {}).values()
            for comparison in outputs.values()
        ]
        yield SurgeryLine(
            when=result.variant,
            step=step.get("step", ""),
            nodes=step.get("nodes"),
            removed=step.get("removed", {}),
            added=step.get("added", {}),
            against=step.get("against", ""),
            basis=step.get("basis"),
            relative=max(errors, key=lambda error: (error != error, error), default=None),
        )


def conversion_line(result: Result[ConvertResult]) -> ConversionLine:
    """Describe one converted precision."""
    content = result.content
    return ConversionLine(
        precision=result.variant,
        status=result.status,
        method=content.get("method", ""),
        initializers=content.get("initializers", {}),
        casts=content.get("casts"),
        bytes_before=content.get("bytes_before"),
        bytes_after=content.get("bytes_after"),
        kept_fp32=tuple(content.get("kept_fp32", [])),
    )


def _stage(target: str, facts: Mapping[str, Any]) -> GraphStage:
    stage, _, rest = target.partition(":")
    variant = rest.partition(":")[2]
    stored, macs = facts["initializers"], facts["macs"]
    return GraphStage(
        stage=f"{stage}:{variant}" if variant else stage,
        opsets=facts["opsets"],
        weights=facts["weights"],
        initializers=stored["count"],
        initializer_bytes=stored["bytes"],
        macs=macs["total"],
        formula=macs["formula"] or {},
        operator_macs=macs["operators"],
        not_counted=macs["not_counted"],
    )


def _of(counts: Counts | None, operators: Iterable[str]) -> int | None:
    return None if counts is None else sum(counts.get(operator, 0) for operator in operators)


def _modules(modules: Counts, old: Counts | None, new: Counts | None) -> Iterator[ModuleCount]:
    classes: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(modules):
        if name in _NODE_OF_MODULE:
            classes.setdefault(_NODE_OF_MODULE[name], []).append(name)
    for operators, names in classes.items():
        count = sum(modules[name] for name in names)
        yield ModuleCount(tuple(names), count, operators, _of(old, operators), _of(new, operators))


def _folded(modules: Iterable[ModuleCount], *, has_surgery: bool) -> Iterator[str]:
    def sentence(gone: int, total: int, by: str, graph: str) -> str:
        which = "The only batch norm was" if total == 1 else f"{gone} of {total} batch norms were"
        change = f"BatchNormalization {total} → {total - gone} in the {graph} graph"
        return f"{which} folded {by}: {change}."

    for line in modules:
        if line.operators != _BATCH_NORM or line.exported is None:
            continue
        if line.count > line.exported:
            yield sentence(line.count - line.exported, line.count, "by the exporter", "exported")
        if not has_surgery and line.simplified is not None and line.simplified < line.exported:
            gone = line.exported - line.simplified
            yield sentence(gone, line.exported, "by simplification", "simplified")
