"""Latencies on the page of a model: distributions, every contender, batch sizes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from buildsys.report import formatting as q
from buildsys.report.formatting import case_order
from buildsys.report.html import charts
from buildsys.report.html.charts import Chart, Distribution, Series
from buildsys.report.ranking import contender_name
from buildsys.report.results.bench import ENGINE, ENGINE_CUDA_GRAPH
from buildsys.report.results.engine_lines import TimingLine
from buildsys.report.results.report import Report

_ENGINE_COLORS = 3
_BASELINE_KINDS = {
    "torch": "b0", "torch_compile": "b1", "torch_cuda_graph": "b2", "onnxruntime": "b3",
}  # fmt: skip
Samples = Mapping[tuple[str, str, str], Sequence[float]]  # of engine, case and contender


def distributions(
    report: Report, samples: Samples
) -> list[tuple[str, str, list[tuple[str, Chart]]]]:
    """Return cases, sizes and charts per engine, the recommendation's case first."""
    first = report.recommendation.case if report.recommendation else ""
    colors, found = _colors(report), []
    for case in sorted(
        {line.case for line in report.bench}, key=lambda c: (c != first, case_order(c))
    ):
        lines = [line for line in report.bench if line.case == case]
        rows = defaultdict[str, list[Distribution]](list)
        for line in lines:
            rows[line.engine].append(
                Distribution(
                    name=contender_name(line.engine, line.contender),
                    kind=colors[line.engine, line.contender],
                    samples_ms=samples.get((line.engine, case, line.contender), ()),
                    p50_ms=line.p50_ms,
                    p99_ms=line.p99_ms,
                    interval_ms=line.p50_interval_ms,
                    noisy=line.noisy,
                )
            )
        drawn = [(engine, charts.distributions(row)) for engine, row in rows.items()]
        pictures = [(engine, chart) for engine, chart in drawn if chart is not None]
        if pictures:
            found.append((case, lines[0].dims, pictures))
    return found


def contenders(report: Report) -> list[tuple[TimingLine, str, bool, str]]:
    """Return every contender with name, mark for the fastest, and ratio.

    The ratio is that of its median to the engine's of the same benchmark and case, if both are
    steady.
    """
    names = _names(report)
    fastest: dict[str, float] = {}
    for line in report.bench:
        if _is_positive(line.p50_ms) and not line.noisy:
            fastest[line.case] = min(line.p50_ms or 0.0, fastest.get(line.case, math.inf))
    found = []
    for line in sorted(report.bench, key=lambda line: case_order(line.case)):
        own = next(
            one for one in report.bench if (one.engine, one.case) == (line.engine, line.case)
        )
        ratio, is_steady = "", not (own.noisy or line.noisy)
        if own is not line and is_steady and _is_positive(own.p50_ms) and _is_positive(line.p50_ms):
            ratio = f"{(line.p50_ms or 0.0) / (own.p50_ms or 1.0):.2f}{q.TIMES}"
        is_fastest = not line.noisy and line.p50_ms == fastest.get(line.case)
        found.append((line, names[line.engine, line.contender], is_fastest, ratio))
    return found


def by_batch(report: Report) -> list[tuple[str, Chart]]:
    """Return steady latencies and throughputs by batch size, [] for a single size."""
    names, colors = _names(report), _colors(report)

    def drawn(title: str, figure: str) -> Chart | None:
        return charts.lines(
            [
                Series(
                    name,
                    colors[key],
                    tuple(
                        (
                            float(line.batch),
                            getattr(line, figure),
                            line.p50_interval_ms if figure == "p50_ms" else None,
                        )
                        for line in report.bench
                        if (line.engine, line.contender) == key
                        and line.batch
                        and not line.noisy
                        and _is_positive(getattr(line, figure))
                    ),
                )
                for key, name in names.items()
            ],
            "batch size",
            title,
        )

    wanted = (("p50 (ms)", "p50_ms"), ("items per second", "throughput_per_s"))
    return [(title, chart) for title, figure in wanted if (chart := drawn(title, figure))]


def _colors(report: Report) -> dict[tuple[str, str], str]:
    """Return each contender's CSS class: engines by number, baselines by name."""
    engines = [engine.name for engine in report.engines]
    found = {}
    for line in report.bench:
        if line.contender in (ENGINE, ENGINE_CUDA_GRAPH):
            number = engines.index(line.engine) if line.engine in engines else 0
            kind = f"k{number % _ENGINE_COLORS}"
            kind += " dashed" if line.contender == ENGINE_CUDA_GRAPH else ""
        else:
            kind = _BASELINE_KINDS.get(line.contender, "b0")
        found[line.engine, line.contender] = kind
    return found


def _names(report: Report) -> dict[tuple[str, str], str]:
    """Return the name of each contender, unique among all benchmarks."""
    several = len({line.engine for line in report.bench}) > 1
    names = {}
    for line in report.bench:
        name = contender_name(line.engine, line.contender)
        if several and line.contender not in (ENGINE, ENGINE_CUDA_GRAPH):
            name += f" (with {line.engine})"
        names[line.engine, line.contender] = name
    return names


def _is_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
