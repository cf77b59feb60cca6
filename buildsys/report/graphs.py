"""What became of the graph: operators before and after, folded batch norms, converted precisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from buildsys.onnx_graphs.inspection.macs import evaluate
from buildsys.report.result_files import Result, mapping, number, texts, whole
from buildsys.report.results.report import (
    Conversion,
    Graph,
    GraphSize,
    GraphStage,
    ModuleCount,
    OperatorCount,
    SurgeryStep,
)

Counts = Mapping[str, int]
# Modules that stand for one node each as long as nothing is folded or decomposed.
_NODE_OF_MODULE = {
    "Conv1d": ("Conv",), "Conv2d": ("Conv",), "Conv3d": ("Conv",),
    "ConvTranspose1d": ("ConvTranspose",), "ConvTranspose2d": ("ConvTranspose",), "ConvTranspose3d": ("ConvTranspose",),
    "BatchNorm1d": ("BatchNormalization",), "BatchNorm2d": ("BatchNormalization",),
    "BatchNorm3d": ("BatchNormalization",), "SyncBatchNorm": ("BatchNormalization",),
    "Linear": ("Gemm", "MatMul"), "Dropout": ("Dropout",),
}  # fmt: skip
_BATCH_NORM = ("BatchNormalization",)


def graph_of(
    export: Result,
    simplify: Result,
    graphs: Mapping[str, Mapping[str, Any]],
    dims: Mapping[str, int],
    *,
    changed: bool = False,
) -> Graph:
    """Return the graph's figures from the results of the stages and the graphs of their targets, as far as they exist.

    ``dims`` are the sizes of dynamic dimensions for which multiply-accumulates are told. Where surgery has
    ``changed`` it, not all that is gone was simplified away.
    """
    before, after = mapping(simplify.figures.get("before")), mapping(simplify.figures.get("after"))
    exported = export.figures if "operators" in export.figures else before
    old, new = _counts(exported.get("operators")), _counts(after.get("operators"))
    modules = _modules(_counts(export.figures.get("modules")), old, new)
    return Graph(
        exporter=str(export.figures.get("exporter") or ""),
        opset=whole(export.figures.get("opset")),
        ir_version=whole(export.figures.get("ir_version")),
        parameters=whole(export.figures.get("parameters")),
        tool=str(simplify.figures.get("tool") or ""),
        exported=_size(exported),
        simplified=_size(after),
        operators=_operators(old, new),
        modules=modules,
        folded=tuple(_folded(modules, changed=changed)),
        stages=tuple(_stage(target, figures, dims) for target, figures in graphs.items()),
        macs_at=dims,
    )


def _stage(target: str, figures: Mapping[str, Any], dims: Mapping[str, int]) -> GraphStage:
    stage, _, rest = target.partition(":")
    variant = rest.partition(":")[2]
    stored, macs = mapping(figures.get("initializers")), mapping(figures.get("macs"))
    formula = _counts(macs.get("formula")) or {}
    return GraphStage(
        stage=f"{stage}:{variant}" if variant else stage,
        opsets=_counts(figures.get("opsets")) or {},
        weights=whole(figures.get("weights")),
        initializers=whole(stored.get("count")),
        initializer_bytes=whole(stored.get("bytes")),
        macs=_macs_at(macs.get("formula"), dims),
        formula=formula,
        operator_macs={
            name: _macs_at(found, dims) for name, found in mapping(macs.get("operators")).items()
        },
        not_counted=_counts(macs.get("not_counted")) or {},
    )


def _macs_at(terms: object, dims: Mapping[str, int]) -> int | None:
    """Return the value of a formula, None where there is none; one without terms is 0."""
    found = _counts(terms)
    return None if found is None else evaluate(found, dims)


def surgery_of(result: Result) -> Iterator[SurgeryStep]:
    """Yield the steps of one surgery target, as far as they were taken."""
    steps = result.figures.get("steps")
    for figures in map(mapping, steps if isinstance(steps, list) else []):
        compared = [
            mapping(output)
            for case in mapping(figures.get("cases")).values()
            for output in mapping(case).values()
        ]
        errors = [
            float("nan") if (found := number(output.get("relative"))) is None else found
            for output in compared
        ]
        yield SurgeryStep(
            when=result.variant,
            step=str(figures.get("step") or ""),
            nodes=whole(figures.get("nodes")),
            removed=_counts(figures.get("removed")) or {},
            added=_counts(figures.get("added")) or {},
            against=str(figures.get("against") or ""),
            basis=number(figures.get("basis")),
            relative=max(errors, key=lambda error: (error != error, error), default=None),
        )


def conversion_of(result: Result) -> Conversion:
    """Return the figures of one converted precision."""
    figures = result.figures
    return Conversion(
        precision=result.variant,
        status=result.status,
        method=str(figures.get("method") or ""),
        initializers=_counts(figures.get("initializers")) or {},
        casts=whole(figures.get("casts")),
        bytes_before=whole(figures.get("bytes_before")),
        bytes_after=whole(figures.get("bytes_after")),
        kept_fp32=texts(figures.get("kept_fp32")),
    )


def _counts(value: object) -> Counts | None:
    if not isinstance(value, Mapping):
        return None
    return {
        str(name): found for name, entry in value.items() if (found := whole(entry)) is not None
    }


def _size(figures: Mapping[str, Any]) -> GraphSize | None:
    if not figures:
        return None
    return GraphSize(nodes=whole(figures.get("nodes")), size_bytes=whole(figures.get("bytes")))


def _operators(old: Counts | None, new: Counts | None) -> tuple[OperatorCount, ...]:
    names = sorted({*(old or {}), *(new or {})})
    lines = [OperatorCount(name, _of(old, (name,)), _of(new, (name,))) for name in names]
    return tuple(sorted(lines, key=lambda line: (-_change(line), line.operator)))


def _change(line: OperatorCount) -> int:
    return abs((line.simplified or 0) - (line.exported or 0)) if line.simplified is not None else 0


def _of(counts: Counts | None, operators: Iterable[str]) -> int | None:
    return None if counts is None else sum(counts.get(operator, 0) for operator in operators)


def _modules(
    modules: Counts | None, old: Counts | None, new: Counts | None
) -> tuple[ModuleCount, ...]:
    classes: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(modules or {}):
        if name in _NODE_OF_MODULE:
            classes.setdefault(_NODE_OF_MODULE[name], []).append(name)
    return tuple(
        ModuleCount(
            tuple(names),
            _of(modules, names) or 0,
            operators,
            _of(old, operators),
            _of(new, operators),
        )
        for operators, names in classes.items()
    )


def _folded(modules: Iterable[ModuleCount], *, changed: bool) -> Iterable[str]:
    for line in modules:
        if line.operators != _BATCH_NORM or line.exported is None:
            continue
        folded_at_export = line.count - line.exported
        if folded_at_export > 0:
            yield _sentence(
                folded_at_export, line.count, "by the exporter", "exported", line.exported
            )
        if not changed and line.simplified is not None and line.simplified < line.exported:
            gone = line.exported - line.simplified
            yield _sentence(gone, line.exported, "by simplification", "simplified", line.simplified)


def _sentence(gone: int, total: int, by: str, graph: str, left: int) -> str:
    which = "The one batch norm was" if total == 1 else f"{gone} of {total} batch norms were"
    return f"{which} folded {by}: BatchNormalization {total} → {left} in the {graph} graph."
