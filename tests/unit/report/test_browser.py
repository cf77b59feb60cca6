"""Pages in a real browser."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from urllib.parse import quote, unquote, urlparse

import pytest
from browser import NAMES, Tab, find_browser, open_tab
from hostile_text import with_hostile_names
from html_page import page_of
from tiny_results import Results, bench

from buildsys.report.assemble import assemble
from buildsys.report.html.changes import EngineHistory, PastBuild
from buildsys.report.html.environment import INDEX
from buildsys.report.html.pages import (
    GraphPicture,
    IndexRow,
    PipelineRow,
    index_row,
    page_name,
    render_index,
    render_model,
)

GENERATED = "2026-11-22T13:30:00Z"
WIDTHS = (390, 1400)
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
OVERFLOWING = """
[...document.querySelectorAll('body *')]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1
    && !one.closest('.scroll, .zoom, pre, svg svg'))
  .map((one) => one.outerHTML.slice(0, 80))
"""
CUT_OFF = """
[...document.querySelectorAll('.scroll')]
  .filter((one) => one.innerText && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.innerText.slice(0, 80))
"""
OVERLAPPING = """
[...document.querySelectorAll('.chart')].flatMap((chart) => {
  const texts = [...chart.querySelectorAll('text')].filter((one) => one.textContent)
  const marks = [...texts, ...chart.querySelectorAll('circle.dot')]
  const boxes = marks.map((one) => one.getBoundingClientRect())
  return texts.flatMap((one, n) => boxes.flatMap((other, m) => m > n
    && boxes[n].left + 1 < other.right && other.left + 1 < boxes[n].right
    && boxes[n].top + 3 < other.bottom && other.top + 3 < boxes[n].bottom
    ? [one.textContent + ' / ' + (marks[m].textContent)] : []))
})
"""


@pytest.fixture
def folder(results: Results) -> Path:
    """Return a folder with the pages of two models and an index of 300."""
    folder = results.build / "report"
    folder.mkdir()
    case = bench(2.0, engine=2.1, torch=4.2, torch_compile=1, onnxruntime=0.9)["cases"]["opt"]
    cases = {"min": {**case, "batch": 1, "dims": {"batch": 1}}, "opt": case}
    results.passed("bench:tiny:ort-cpu", cases=cases)
    results.passed("bench:tiny:rtx-fp16", cases=cases)
    results.failed("validate:tiny", "output scores differs " * 9, hint="do this\n  and that: " * 5)
    for path in results.inputs.values():
        path.with_suffix(".log").write_text("log")
    picture = "<svg xmlns='http://www.w3.org/2000/svg' width='900' height='90'></svg>"
    past = [
        PastBuild(f"2026-11-{22 - n:02d}T10:00:00Z", "passed", {"latency_p50_ms": 2.0 + n % 3})
        for n in range(20)
    ]
    report = assemble("tiny", results.manifest, results.inputs, {})
    rows = []
    for line in report.summary:
        files = [results.build / "tiny" / name for name in (line.log, line.file)]
        links = [os.path.relpath(path, folder) for path in files if path.is_file()]
        rows.append(PipelineRow(line, "from the cache", *links))
    page = dataclasses.replace(
        page_of(report),
        pipeline=tuple(rows),
        history=(EngineHistory("ort-cpu", timed=tuple(past)),),
        pictures=(GraphPicture("Picture of the graph", f"data:image/svg+xml,{quote(picture)}"),),
        tags=("vision", "nightly"),
        owner="team",
    )
    hostile = with_hostile_names(dataclasses.replace(page, pipeline=(), history=(), pictures=()))
    report = dataclasses.replace(hostile.report, model="a" * 100)
    hostile = dataclasses.replace(hostile, report=report)
    index = []
    for one in (page, hostile):
        (folder / page_name(one.report.model)).write_text(render_model(one))
        index.append(index_row(one))
    first = IndexRow("b0", index[0].page, "passed", "PASSED", GENERATED, "ort", 1.5, tags=("x",))
    index += [dataclasses.replace(first, model=f"b{n}", p50_ms=float(n)) for n in range(298)]
    (folder / INDEX).write_text(render_index(index, GENERATED))
    return folder


def test_pages_fit_every_screen_and_every_link_works(folder: Path, tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    with open_tab(browser, tmp_path / "profile") as tab:
        for page in sorted(folder.glob("*.html")):
            for width in WIDTHS:
                tab.open(page, width, dark=width == WIDTHS[0])
                check_fits(tab, f"{page.name[:9]} at {width} px")
                if width == WIDTHS[1] and page.name.startswith("tiny"):
                    assert tab.run(CUT_OFF) == []
                tab.run(OPEN_ALL)
                check_fits(tab, f"{page.name[:9]} at {width} px, opened")
                if width == WIDTHS[1] and page.name.startswith("tiny"):
                    assert tab.run(CUT_OFF) == []
                assert tab.run(OVERLAPPING) == [], f"{page.name[:9]} at {width} px"
            check_links(tab, page)
            if page.name != INDEX:
                check_print(tab, page)
        check_index(tab)
        assert tab.problems == []


def check_fits(tab: Tab, place: str) -> None:
    assert tab.run("document.documentElement.scrollWidth - innerWidth") <= 0, (
        place, tab.run(OVERFLOWING)
    )  # fmt: skip
    assert tab.run("document.body.innerText.length") > 100, place


def check_print(tab: Tab, page: Path) -> None:
    """Print from a dark screen: light colors, open sections, whole tables."""
    pill = "getComputedStyle(document.querySelector('.pill')).backgroundColor"
    tab.open(page, WIDTHS[1])
    light = tab.run(pill)
    tab.open(page, WIDTHS[1], dark=True)
    closed = tab.run("document.querySelectorAll('details:not([open])').length")
    assert closed
    tab.call("Emulation.setEmulatedMedia", media="print", features=DARK)
    assert tab.run(pill) == light
    assert tab.run("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert tab.run("document.querySelectorAll('details:not([open])').length") == 0
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert tab.run("document.querySelectorAll('details:not([open])').length") == closed


def check_links(tab: Tab, page: Path) -> None:
    links = tab.run("[...document.links].map((one) => one.href)")
    assert links
    for link in links:
        parts = urlparse(link)
        file = Path(unquote(parts.path))
        assert parts.scheme == "file"
        assert file.is_file(), link
        if parts.fragment:
            assert file == page
            assert tab.run(f"document.getElementById({parts.fragment!r}) !== null"), link


def check_index(tab: Tab) -> None:
    """Filter and sort the index, next to the page that is open."""
    shown = "[...document.querySelectorAll('.index tbody tr')].filter((one) => !one.hidden)"
    sort = "document.querySelector('.index th:nth-child(4) button').click()"
    first = f"{shown}[0].querySelector('a').textContent"
    tab.open(Path(urlparse(tab.run("location.href")).path).with_name(INDEX), 1400)
    assert tab.run(f"{shown}.length") == 300
    tab.run("document.querySelector('button[value=x]').click()")
    assert tab.run(f"{shown}.length") == 298
    tab.run("search = document.querySelector('#search'); search.value = 'B29'; search.oninput()")
    assert tab.run(f"{shown}.length") == 9  # b29, and b290 to b297
    tab.run(sort)
    assert tab.run(first) == "b29"
    tab.run(sort)
    assert tab.run(first) == "b297"
