"""The page of one model, from the other reports' data, and the index of all models.

A page is one file without external resources: it opens from a disk, in a mail or as an artifact of
a CI system. Everything works without scripts; they add sorting, filters, zoom and relative times.
"""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from buildsys.report import formatting as q
from buildsys.report.checks import comparison_table, failure_table, limits_text, margin_text
from buildsys.report.engines import contender_title
from buildsys.report.html import figures
from buildsys.report.html.figures import EngineHistory, PageChange, changes, sparkline
from buildsys.report.ranking import accuracy_texts, contender_name, headline, ranking_table
from buildsys.report.report_types import Report, TargetLine, problems
from buildsys.report.result_files import ABSENT, FAILED, PASSED, STALE
from buildsys.system.printable import printable

INDEX = "index.html"
MODEL = "model.html"
MACROS = "macros.html"
STATUS_TEXTS = {"absent": "no result", "broken": "manifest broken"}
_CODE = re.compile(r"`([^`\n]+)`")


@cache
def environment() -> Environment:
    """Set up the environment of all templates."""
    made = Environment(
        loader=PackageLoader("buildsys.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=-1,
    )
    made.filters |= {
        "accuracy": accuracy_texts,
        "bar": figures.bar,
        "comparisons": comparison_table,
        "contender": contender_title,
        "cosine": q.cosine,
        "count": q.count,
        "curves": figures.curves,
        "duration": q.duration,
        "error": q.error,
        "failures": failure_table,
        "fold": q.fold,
        "interval": q.interval,
        "large": q.large,
        "latency": q.latency,
        "limits": limits_text,
        "margin": lambda check: margin_text(check, with_place=True),
        "minute": lambda text: text[:16].replace("T", " "),
        "percent": q.percent,
        "prose": _prose,
        "sentence": lambda text: _prose(f"{text.rstrip().rstrip('.')}." if text.strip() else ""),
        "significant": q.significant,
        "size": q.size,
        "spark": figures.sparkline,
        "status": lambda status: STATUS_TEXTS.get(status, status),
    }
    style, script = (_resource(name) for name in ("style.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made.globals |= {
        "style": style,
        "script": script,
        "script_hash": f"sha256-{digest}",  # a second guard, after escaping, against other scripts
    }
    return made


def _resource(name: str) -> Markup:
    folder = files("buildsys.report.html") / "templates"
    return Markup((folder / name).read_text("utf-8"))  # noqa: S704 - a file of ours


def _printable(value: Any) -> Any:
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable(value) if is_text else value


def _prose(text: str) -> Markup:
    """Write a sentence, with what is in backticks as code."""
    plain = str(escape(printable(text)))  # an escaped string would escape what is put into it
    return Markup(_CODE.sub(r"<code>\1</code>", plain))  # noqa: S704 - it is escaped


_ORDER = {
    "failed": 0,
    "broken": 0,
    "stale": 1,
    "partial": 2,
    "absent": 4,
}  # in the index; 3: all others
_SPARK_BUILDS = 24


@dataclass(frozen=True)
class PipelineRow:
    """One target of the pipeline with links to its files."""

    line: TargetLine
    log: str = ""  # relative to the page; "" if there is no such file
    result: str = ""


@dataclass(frozen=True)
class Picture:
    """The picture of a graph or sample; large ones of graphs are separate files."""

    title: str
    link: str  # relative to the page, or a data URI


@dataclass(frozen=True)
class ModelPage:
    """Everything on the page of one model."""

    report: Report
    generated: str  # ISO 8601, UTC
    pipeline: tuple[PipelineRow, ...] = ()
    history: tuple[EngineHistory, ...] = ()
    history_is_readable: bool = True
    pictures: tuple[Picture, ...] = ()
    samples: tuple[Picture, ...] = ()
    tags: tuple[str, ...] = ()
    owner: str = ""

    def history_of(self, engine: str) -> EngineHistory:
        """Find the builds of an engine."""
        own = (history for history in self.history if history.engine == engine)
        return next(own, EngineHistory(engine))


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
    """Choose the unique file name of a model's page."""
    return f"{model}.html" if model.lower() != "index" else f"{model},model.html"


def render_model(page: ModelPage) -> str:
    """Render the page of one model as HTML."""
    report, shipped = page.report, page.report.recommendation
    engine = shipped.engine if shipped else ""
    total = sum(row.line.seconds or 0.0 for row in page.pipeline)
    return environment().get_template(MODEL).render(
        page=page,
        report=report,
        shipped=shipped,
        engine=next((line for line in report.engines if line.name == engine), None),
        spark=sparkline(_trend(page, engine), "spark wide"),
        changes=_changes(page, engine),
        problems=_problems(page.pipeline),
        manifest=json.dumps(report.provenance.manifest, indent=2, ensure_ascii=False),
        pipeline=[(row, (row.line.seconds or 0.0) / total if total else 0.0)
                  for row in page.pipeline],
        total=total,
        headline=headline(report, shipped),
        ranking=ranking_table(report.ranking) if report.ranking else None,
        contenders=figures.contenders(report),
        accuracies=figures.accuracies(report),
        trends=[(past, chart) for past in page.history if (chart := figures.trend(past.timed))],
        layers={engine.name: [line for line in report.layers if line.engine == engine.name]
                for engine in report.engines},
    )  # fmt: skip


def index_row(page: ModelPage) -> IndexRow:
    """Sum up a page for the index."""
    report, shipped = page.report, page.report.recommendation
    engine = shipped.engine if shipped else ""
    timing = shipped.timing if shipped else None
    fastest = shipped.fastest if shipped and shipped.fastest != timing else None
    timed = page.history_of(engine).timed
    failed = next((line for line in report.summary if line.status == FAILED and line.reason), None)
    return IndexRow(
        model=report.model,
        page=page_name(report.model),
        status=report.verdict.status,
        text=q.fold(f"{failed.target}: {failed.reason}" if failed else report.verdict.text)[0],
        built=max((build.started for build in timed), default="") or report.provenance.started,
        engine=engine,
        p50_ms=timing.p50_ms if timing else None,
        fastest=contender_name(fastest.engine, fastest.contender) if fastest else "",
        size_bytes=next((line.size_bytes for line in report.engines if line.name == engine), None),
        trend=_trend(page, engine),
        tags=page.tags,
        owner=page.owner,
    )


def render_index(rows: Sequence[IndexRow], generated: str) -> str:
    """Render the index of all models as HTML."""
    ordered = sorted(rows, key=lambda row: (_ORDER.get(row.status, 3), row.model))
    template = environment().get_template(INDEX)
    return template.render(
        rows=ordered,
        counts=Counter(row.status for row in ordered),
        tags=sorted({tag for row in rows for tag in row.tags}),
        generated=generated,
    )


def _trend(page: ModelPage, engine: str) -> tuple[float | None, ...]:
    builds = page.history_of(engine).timed[:_SPARK_BUILDS]
    return tuple(build.trusted_latency for build in reversed(builds))


def _problems(
    pipeline: Sequence[PipelineRow],
) -> list[tuple[str, str, list[tuple[str, list[PipelineRow]]]]]:
    """List status, hint, and reasons with their targets of everything not passed."""
    rows = {row.line.target: row for row in pipeline}
    return [
        (*key, [(reason, [rows[line.target] for line in lines]) for reason, lines in reasons])
        for key, reasons in problems([row.line for row in pipeline])
        if key[0] != PASSED
    ]


def _changes(page: ModelPage, engine: str) -> list[PageChange]:
    """List changes by the last builds, the recommended engine first.

    Earlier builds of stale targets are left out.
    """
    lines = [row.line for row in page.pipeline if row.line.status not in (STALE, ABSENT)]
    by_subject: dict[str, PageChange] = {}  # reasons are much the same for several engines
    for history in sorted(page.history, key=lambda history: history.engine != engine):
        stages = {line.stage for line in lines if line.variant == history.engine}
        for change in changes(history, stages):
            by_subject.setdefault(change.what, change)
    return list(by_subject.values())
