"""Pages of models and the index, from the same data as the other reports.

A page is one file without external resources: it opens from a disk, in a mail or as an artifact of
a CI system. Everything works without scripts; they add sorting, filters, zoom and relative times.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from buildsys.report import formatting as q
from buildsys.report.formatting import case_order
from buildsys.report.html import charts, tables
from buildsys.report.html.changes import Change, PastBuild, changes
from buildsys.report.html.charts import Chart, Distribution, ErrorRow, Series, TrendPoint
from buildsys.report.recommendation import contender_name
from buildsys.report.results.bench import ENGINE, ENGINE_CUDA_GRAPH
from buildsys.report.results.reader import FAILED, PASSED
from buildsys.report.results.report import (
    Check,
    Report,
    TargetLine,
    TimingLine,
)
from buildsys.system.printable import printable

INDEX = "index.html"
_MOST_ERROR_ROWS = 12
_TABLE_BUILDS = 30  # rows below a trend
_MOST_BUILDS = 100
_ENGINE_COLORS = 3
_BASELINE_KINDS = {
    "torch": "b0", "torch_compile": "b1", "torch_cuda_graph": "b2", "onnxruntime": "b3",
}  # fmt: skip
STATUS_TEXTS = {
    "unavailable": "not run here", "absent": "no result", "partial": "incomplete",
}  # fmt: skip


@dataclass(frozen=True)
class PipelineRow:
    """One target of the pipeline with links to its files."""

    line: TargetLine
    how: str  # built, restored from the cache, up to date; "" if unknown
    log: str = ""  # relative to the page; "" if there is no such file
    result: str = ""


@dataclass(frozen=True)
class GraphPicture:
    """The picture of a graph: shapes inside the page, or a link to a large file."""

    title: str
    svg: str = ""
    link: str = ""


@dataclass(frozen=True)
class EngineHistory:
    """The builds of one engine's targets, newest first."""

    engine: str
    built: tuple[PastBuild, ...] = ()
    verified: tuple[PastBuild, ...] = ()
    timed: tuple[PastBuild, ...] = ()


@dataclass(frozen=True)
class ModelPage:
    """Everything on the page of one model."""

    report: Report
    generated: str  # ISO 8601, UTC
    pipeline: tuple[PipelineRow, ...] = ()
    samples_ms: Mapping[tuple[str, str, str], Sequence[float]] | None = None  # engine, case, name
    history: tuple[EngineHistory, ...] = ()
    pictures: tuple[GraphPicture, ...] = ()
    tags: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True)
class IndexRow:
    """The line of one model in the index."""

    model: str
    page: str  # file name
    status: str
    text: str  # the verdict
    built: str  # ISO 8601, UTC
    engine: str = ""
    p50_ms: float | None = None
    fastest: str = ""  # the contender that is faster than the engine
    size_bytes: int | None = None
    trend: tuple[float | None, ...] = ()  # latencies, oldest first; None: failed
    tags: tuple[str, ...] = ()
    owner: str = ""


def page_name(model: str) -> str:
    """Return the file name of a model's page; no two names are equal."""
    return f"{model}.html" if model.lower() != "index" else f"{model},model.html"


def index_row(page: ModelPage) -> IndexRow:
    """Return the line of a page in the index."""
    report, shipped = page.report, page.report.recommendation
    engine = shipped.engine if shipped else ""
    timing = shipped.timing if shipped else None
    fastest = shipped.fastest if shipped and shipped.fastest != timing else None
    line = next((one for one in report.engines if one.name == engine), None)
    timed = next((one.timed for one in page.history if one.engine == engine), ())
    return IndexRow(
        model=report.model,
        page=page_name(report.model),
        status=report.verdict.status,
        text=report.verdict.text,
        built=max((one.started for one in timed), default="") or report.provenance.started,
        engine=engine,
        p50_ms=timing.p50_ms if timing else None,
        fastest=contender_name(fastest) if fastest else "",
        size_bytes=line.size_bytes if line else None,
        trend=tuple(one.number("latency_p50_ms") for one in reversed(timed[:24])),
        tags=page.tags,
        owner=page.owner,
    )


def render_index(rows: Sequence[IndexRow], generated: str) -> str:
    """Return the index of all models as HTML."""
    order = {"failed": 0, "stale": 1, "partial": 2}
    ordered = sorted(rows, key=lambda row: (order.get(row.status, 3), row.model))
    return (
        _environment()
        .get_template("index.html")
        .render(
            rows=ordered,
            counts=Counter(row.status for row in ordered),
            tags=sorted({tag for row in rows for tag in row.tags}),
            generated=generated,
        )
    )


def render_model(page: ModelPage) -> str:
    """Return the page of one model as HTML."""
    report, shipped = page.report, page.report.recommendation
    history = {one.engine: one for one in page.history}
    engine = shipped.engine if shipped else ""
    own = history.get(engine)
    colors = _colors(report)
    latency = [
        (case, _dims(report, case), _distributions(page, case, colors)) for case in _cases(report)
    ]
    total = sum(row.line.seconds or 0.0 for row in page.pipeline)
    return _environment().get_template("model.html").render(
        page=page,
        report=report,
        shipped=shipped,
        engine=next((one for one in report.engines if one.name == engine), None),
        spark=charts.sparkline(_latencies(own.timed[:24]), "spark wide") if own else Markup(""),
        changes=_changes(page.history, engine),
        problems=_problems(page.pipeline),
        manifest=json.dumps(report.provenance.manifest, indent=2, ensure_ascii=False),
        pipeline=[(row, (row.line.seconds or 0.0) / total if total else 0.0)
                  for row in page.pipeline],
        total=total,
        checks=[(check, _error_chart(check)) for check in report.checks],
        latency=[found for found in latency if found[2]],
        contenders=_contenders(report),
        by_batch=_by_batch(report, colors),
        trends=[(one, chart) for one in page.history if (chart := _trend(one))],
        gate_tables=_filled(tables.gates(report)),
        gpu_tables=_filled(tables.gpu_timings(report), tables.gpu_states(report)),
        graph_tables=_filled(
            tables.operators(report.graph), tables.modules(report.graph),
            tables.graph_stages(report.graph), tables.tensors(report), tables.conversions(report),
            tables.surgery(report), tables.custom_operators(report),
        ),
        layers={one.name: [line for line in report.layers if line.engine == one.name]
                for one in report.engines},
        provenance={one.engine: one.lines for one in report.engine_provenance},
        provenance_tables=_filled(tables.files(report), tables.versions(report)),
    )  # fmt: skip


def _problems(
    pipeline: Iterable[PipelineRow],
) -> list[tuple[str, str, str, list[PipelineRow]]]:
    """Return status, reason, hint and targets of everything that has not passed."""
    found: dict[tuple[str, str, str], list[PipelineRow]] = {}
    for row in pipeline:
        line = row.line
        if line.status != PASSED and line.reason:
            found.setdefault((line.status, line.reason, line.hint), []).append(row)
    ordered = sorted(found.items(), key=lambda item: item[0][0] != FAILED)
    return [(*key, rows) for key, rows in ordered]


def load_templates() -> None:
    """Compile the templates, which takes longer than rendering them."""
    for name in ("model.html", INDEX):
        _environment().get_template(name)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("buildsys.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=-1,
    )
    environment.filters |= {
        "duration": q.duration, "size": q.size, "significant": q.significant, "error": q.error,
        "count": q.count, "cosine": q.cosine,
        "status": lambda status: STATUS_TEXTS.get(status, status),
        "bar": charts.bar, "spark": charts.sparkline, "sentence": _sentence,
        "interval": q.interval, "limits": tables.limits, "comparisons": tables.comparisons,
        "failures": tables.failures, "minute": lambda text: text[:16].replace("T", " "),
        "source": _source, "csp_hash": _csp_hash,
    }  # fmt: skip
    return environment


def _source(name: str) -> Markup:
    """Return a file of the templates unchanged: styles or a script."""
    loader = _environment().loader
    assert loader is not None
    return Markup(loader.get_source(_environment(), name)[0])  # noqa: S704 - a file of ours


def _csp_hash(name: str) -> str:
    """Return the hash of a script: a second guard, after escaping, against any other one."""
    return "sha256-" + base64.b64encode(hashlib.sha256(_source(name).encode()).digest()).decode()


def _printable(value: Any) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_text else value


def _sentence(text: str) -> str:
    return f"{text.rstrip().rstrip('.')}." if text.strip() else ""


def _filled(*found: tables.Table) -> list[tables.Table]:
    return [one for one in found if one.rows]


def _cases(report: Report) -> list[str]:
    """Return the timed cases, that of the recommendation first."""
    first = report.recommendation.case if report.recommendation else ""
    cases = {line.case for line in report.bench}
    return sorted(cases, key=lambda case: (case != first, case_order(case)))


def _dims(report: Report, case: str) -> str:
    return next((line.dims for line in report.bench if line.case == case), "")


def _colors(report: Report) -> dict[tuple[str, str], str]:
    """Return the class of each contender: engines k0 and on, baselines by name."""
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
        name = contender_name(line)
        if several and line.contender not in (ENGINE, ENGINE_CUDA_GRAPH):
            name += f" next to {line.engine}"
        names[line.engine, line.contender] = name
    return names


def _distributions(
    page: ModelPage, case: str, colors: Mapping[tuple[str, str], str]
) -> list[tuple[str, Chart]]:
    """Return one chart per engine with its contenders."""
    samples, rows = page.samples_ms or {}, defaultdict[str, list[Distribution]](list)
    for line in page.report.bench:
        if line.case == case:
            rows[line.engine].append(
                Distribution(
                    name=contender_name(line),
                    kind=colors[line.engine, line.contender],
                    samples_ms=samples.get((line.engine, case, line.contender), ()),
                    p50_ms=line.p50_ms,
                    p99_ms=line.p99_ms,
                    interval_ms=line.p50_interval_ms,
                )
            )
    drawn = ((engine, charts.distributions(found)) for engine, found in rows.items())
    return [(engine, chart) for engine, chart in drawn if chart is not None]


def _contenders(report: Report) -> list[tuple[TimingLine, str, bool, str]]:
    """Return every contender with its name, a mark for the fastest, and its ratio.

    The ratio is that of its median to the engine's of the same benchmark and case.
    """
    names = _names(report)
    fastest: dict[str, float] = {}
    for line in report.bench:
        if _is_positive(line.p50_ms):
            fastest[line.case] = min(line.p50_ms or 0.0, fastest.get(line.case, math.inf))
    found = []
    for line in sorted(report.bench, key=lambda line: case_order(line.case)):
        own = next(
            one.p50_ms for one in report.bench if (one.engine, one.case) == (line.engine, line.case)
        )
        ratio = ""
        if _is_positive(own) and _is_positive(line.p50_ms) and own is not line.p50_ms:
            ratio = f"{(line.p50_ms or 0.0) / (own or 1.0):.2f}{q.TIMES}"
        is_fastest = _is_positive(line.p50_ms) and line.p50_ms == fastest.get(line.case)
        found.append((line, names[line.engine, line.contender], is_fastest, ratio))
    return found


def _by_batch(report: Report, colors: Mapping[tuple[str, str], str]) -> list[tuple[str, Chart]]:
    """Return latency and throughput against batch size, [] for a single batch size."""
    names = _names(report)

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


def _error_chart(check: Check) -> Chart | None:
    """Return the errors of a check, relative ones if those are limited or nothing else is."""
    limit = check.limits.get("rtol")
    name, measure = "relative", "relative error"
    if limit is None and "atol" in check.limits:
        name, measure, limit = "max_abs", "absolute error", check.limits["atol"]
    several = len({line.subject for line in check.comparisons}) > 1
    rows: dict[str, dict[str, float]] = {}
    for line in check.comparisons:
        value = getattr(line, name)
        if value is not None and not line.uninformative:
            title = f"{line.output}, {line.subject}" if several else line.output
            rows.setdefault(title, {})[line.case] = value

    def worst(row: str) -> tuple[bool, float]:
        found = max(rows[row].values(), key=lambda v: (math.isnan(v), v))
        return not math.isnan(found), -found

    shown = sorted(rows, key=worst)[:_MOST_ERROR_ROWS]
    return charts.errors([ErrorRow(row, rows[row]) for row in rows if row in shown], limit, measure)


def _latencies(builds: Iterable[PastBuild]) -> list[float | None]:
    return [one.number("latency_p50_ms") for one in builds][::-1]


def _trend(one: EngineHistory) -> Chart | None:
    points = [
        TrendPoint(
            value=build.number("latency_p50_ms") if build.status != FAILED else None,
            interval=build.interval("latency_interval_ms"),
            label=" ".join(filter(None, (build.started[:16].replace("T", " "), build.commit))),
            mark=build.mark,
        )
        for build in reversed(one.timed[:_MOST_BUILDS])
    ]
    chart = charts.trend(points, "ms")
    if chart is None:
        return None
    return Chart(chart.svg, chart.columns, chart.rows[:_TABLE_BUILDS])


def _changes(history: Iterable[EngineHistory], engine: str) -> list[Change]:
    """Return what the last builds changed, the recommended engine first."""
    found: dict[Change, None] = {}  # reasons are the same for several engines
    for one in sorted(history, key=lambda one: one.engine != engine):
        found |= dict.fromkeys(changes(one.engine, one.built, one.verified, one.timed))
    return list(found)


def _is_positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0
