"""The index of all models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from buildsys.report.html.environment import INDEX, environment
from buildsys.report.html.model_page import ModelPage, page_name
from buildsys.report.ranking import contender_name


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
        fastest=contender_name(fastest.engine, fastest.contender) if fastest else "",
        size_bytes=line.size_bytes if line else None,
        trend=tuple(one.trusted_latency for one in reversed(timed[:24])),
        tags=page.tags,
        owner=page.owner,
    )


def render_index(rows: Sequence[IndexRow], generated: str) -> str:
    """Return the index of all models as HTML."""
    order = {"failed": 0, "stale": 1, "partial": 2, "absent": 4}
    ordered = sorted(rows, key=lambda row: (order.get(row.status, 3), row.model))
    return (
        environment()
        .get_template(INDEX)
        .render(
            rows=ordered,
            counts=Counter(row.status for row in ordered),
            tags=sorted({tag for row in rows for tag in row.tags}),
            generated=generated,
        )
    )
