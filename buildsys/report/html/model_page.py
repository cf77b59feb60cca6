"""The page of one model, from the other reports' data.

A page is one file without external resources: it opens from a disk, in a mail or as an artifact of
a CI system. Everything works without scripts; they add sorting, filters, zoom and relative times.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from buildsys.report.html import figures, tables
from buildsys.report.html.changes import Change, PastBuild, changes
from buildsys.report.html.charts import sparkline
from buildsys.report.html.environment import MODEL, environment
from buildsys.report.recommendation import headline
from buildsys.report.results.reader import ABSENT, FAILED, PASSED, STALE
from buildsys.report.results.report import Report, TargetLine
from buildsys.stages.table import BENCH, ENGINE, VERIFY


@dataclass(frozen=True)
class PipelineRow:
    """One target of the pipeline with links to its files."""

    line: TargetLine
    how: str  # built, restored from the cache, up to date; "" if unknown
    log: str = ""  # relative to the page; "" if there is no such file
    result: str = ""


@dataclass(frozen=True)
class GraphPicture:
    """The picture of a graph; large pictures are separate files."""

    title: str
    link: str  # relative to the page, or a data URI

    @property
    def is_inside(self) -> bool:
        """Check for a picture inside the page."""
        return self.link.startswith("data:")


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
    history: tuple[EngineHistory, ...] = ()
    history_is_readable: bool = True
    pictures: tuple[GraphPicture, ...] = ()
    tags: tuple[str, ...] = ()
    owner: str = ""


def page_name(model: str) -> str:
    """Return the unique file name of a model's page."""
    return f"{model}.html" if model.lower() != "index" else f"{model},model.html"


def render_model(page: ModelPage) -> str:
    """Return the page of one model as HTML."""
    report, shipped = page.report, page.report.recommendation
    history = {one.engine: one for one in page.history}
    engine = shipped.engine if shipped else ""
    own = history.get(engine)
    total = sum(row.line.seconds or 0.0 for row in page.pipeline)
    return environment().get_template(MODEL).render(
        page=page,
        report=report,
        shipped=shipped,
        engine=next((one for one in report.engines if one.name == engine), None),
        spark=sparkline(_latencies(own.timed[:24]), "spark wide") if own else Markup(""),
        changes=_changes(page, engine),
        problems=_problems(page.pipeline),
        manifest=json.dumps(report.provenance.manifest, indent=2, ensure_ascii=False),
        pipeline=[(row, (row.line.seconds or 0.0) / total if total else 0.0)
                  for row in page.pipeline],
        total=total,
        headline=headline(report, shipped),
        pareto=figures.pareto(report.ranking),
        ranking=tables.ranking(report),
        contenders=figures.contenders(report),
        by_batch=list(figures.by_batch(report)),
        trends=[(one, chart) for one in page.history if (chart := figures.trend(one.timed))],
        gate_tables=_filled(tables.gates(report)),
        command_tables=_filled(tables.commands(report)),
        gpu_tables=_filled(tables.gpu_timings(report), tables.gpu_states(report)),
        graph_tables=_filled(
            tables.operators(report.graph), tables.modules(report.graph),
            tables.graph_stages(report.graph), tables.tensors(report), tables.conversions(report),
            tables.searches(report), tables.surgery(report), tables.custom_operators(report),
        ),
        layers={one.name: [line for line in report.layers if line.engine == one.name]
                for one in report.engines},
        provenance={one.engine: one.lines for one in report.engine_provenance},
        provenance_tables=_filled(tables.files(report), tables.versions(report)),
    )  # fmt: skip


def _problems(
    pipeline: Iterable[PipelineRow],
) -> list[tuple[str, str, str, list[PipelineRow]]]:
    """Return status, reason, hint and targets of everything not passed."""
    found: dict[tuple[str, str, str], list[PipelineRow]] = {}
    for row in pipeline:
        line = row.line
        if line.status != PASSED and line.reason:
            found.setdefault((line.status, line.reason, line.hint), []).append(row)
    ordered = sorted(found.items(), key=lambda item: item[0][0] != FAILED)
    return [(*key, rows) for key, rows in ordered]


def _latencies(builds: Iterable[PastBuild]) -> list[float | None]:
    return [one.trusted_latency for one in builds][::-1]


def _changes(page: ModelPage, engine: str) -> list[Change]:
    """Return changes by the last builds, the recommended engine first.

    Earlier builds of stale targets are left out.
    """
    current = {
        (row.line.stage, row.line.variant)
        for row in page.pipeline
        if row.line.status not in (STALE, ABSENT)
    }
    found: dict[str, Change] = {}  # reasons are much the same for several engines
    for one in sorted(page.history, key=lambda one: one.engine != engine):
        builds = {ENGINE: one.built, VERIFY: one.verified, BENCH: one.timed}
        for change in changes(
            one.engine,
            *(own if (stage, one.engine) in current else () for stage, own in builds.items()),
        ):
            found.setdefault(change.what, change)
    return list(found.values())


def _filled(*found: tables.Table) -> list[tables.Table]:
    return [one for one in found if one.rows]
