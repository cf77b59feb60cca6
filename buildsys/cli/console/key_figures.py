"""The figure of each stage that people look for first, in a few words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from buildsys.report import formatting
from buildsys.report.gpu_timing import ENGINE_CUDA_GRAPH, own_contender

Figures = Mapping[str, Any]


def key_figure(stage: str, result: Figures) -> str:
    """Return the key figure out of a result file, or "" where there is none.

    A result that lacks a field (an older one, or one cut short by a failed check) gives less text, never an error.
    """
    told = _KEY_FIGURES.get(stage)
    try:
        return told(result) if told else ""
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""


def worst_relative(comparisons: Any) -> tuple[float, str] | None:
    """Return the largest relative error in nested comparisons and where it is; NaN is worse than any number."""
    found = list(_relatives(comparisons, ()))
    if not found:
        return None
    value, path = max(found, key=lambda entry: (entry[0] != entry[0], entry[0]))
    return value, " ".join(path)


def _relatives(node: Any, path: tuple[str, ...]) -> Iterator[tuple[float, tuple[str, ...]]]:
    if not isinstance(node, Mapping):
        return
    relative = node.get("relative")
    if isinstance(relative, int | float | str):
        yield float(relative), path
    for name, value in node.items():
        yield from _relatives(value, (*path, name))


def _export(result: Figures) -> str:
    nodes = f"{formatting.count(result['nodes'])} node{'s' * (result['nodes'] != 1)}"
    return f"opset {result['opset']}, {nodes}, {formatting.size(result['bytes'])}"


def _reference(result: Figures) -> str:
    cases = list(result["cases"])
    return f"{'case' if len(cases) == 1 else 'cases'} {', '.join(cases)}"


def _simplify(result: Figures) -> str:
    before, after = (formatting.count(result[when]["nodes"]) for when in ("before", "after"))
    return f"{before} → {after} nodes"


def _surgery(result: Figures) -> str:
    count = len(result["steps"])
    return f"{count} step{'s' * (count != 1)}, {_simplify(result)}"


def _convert(result: Figures) -> str:
    return f"{formatting.size(result['bytes_before'])} → {formatting.size(result['bytes_after'])}"


def _validate(result: Figures) -> str:
    return _worst(result["graphs"])


def _verify(result: Figures) -> str:
    return _worst(result["cases"])


def _engine(result: Figures) -> str:
    return formatting.size(result["engine_bytes"])


def _bench(result: Figures) -> str:
    cases = result["cases"]
    name = "opt" if "opt" in cases else next(iter(cases))
    doubt = ", noisy" if result.get("noisy") else ""
    return f"{name}: {_latency(cases[name])}{doubt}"


def _latency(case: Figures) -> str:
    contenders = case["contenders"]
    own = contenders[own_contender(contenders)]
    text = f"p50 {formatting.significant(own['p50_ms'])} ms{_by_the_gpu(own)}"
    text += f", {formatting.significant(own['throughput_per_s'])}/s"
    speedup = case.get("speedup")
    text += f", {formatting.speedup(speedup)} torch" if isinstance(speedup, int | float) else ""
    graph = contenders.get(ENGINE_CUDA_GRAPH)
    if graph is None or graph is own:
        return text
    return (
        f"{text}; CUDA graph p50 {formatting.significant(graph['p50_ms'])} ms{_by_the_gpu(graph)}"
    )


def _by_the_gpu(contender: Figures) -> str:
    gpu = contender.get("gpu")
    return f" (GPU {formatting.significant(gpu['p50_ms'])})" if gpu else ""


def _worst(comparisons: Figures) -> str:
    worst = worst_relative(comparisons)
    return f"worst relative error {formatting.error(worst[0])} ({worst[1]})" if worst else ""


_KEY_FIGURES: dict[str, Callable[[Figures], str]] = {
    "operators": formatting.operator_parts,
    "export": _export,
    "reference": _reference,
    "surgery": _surgery,
    "simplify": _simplify,
    "calibrate": formatting.calibration,
    "convert": _convert,
    "validate": _validate,
    "engine": _engine,
    "verify": _verify,
    "bench": _bench,
}
