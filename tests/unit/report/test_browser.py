"""Pages in a real browser."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlparse

import pytest
from hostile_text import with_hostile_names
from html_page import page_of
from tiny_results import Results, bench

from buildsys.report.assemble import assemble
from buildsys.report.html.figures import EngineHistory, PastBuild
from buildsys.report.html.pages import (
    INDEX,
    GraphPicture,
    IndexRow,
    PipelineRow,
    index_row,
    page_name,
    render_index,
    render_model,
)

GENERATED = "2026-11-22T13:30:00Z"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (390, 1400)
# a page in a frame of each width, and with the styles of paper
VARIANTS = {"": "", "print.": "@media print{"}
HARNESS = """
<iframe style="border: 0; height: 900px"></iframe><pre></pre><script>
const frame = document.querySelector("iframe"), found = {};
const open = (name, width) => new Promise((done) => {
  frame.style.width = width + "px";
  frame.onload = () => done(frame.contentDocument);
  frame.src = name;
});
const all = (root, selector) => [...root.querySelectorAll(selector)];
const overflowing = (doc) => doc.documentElement.scrollWidth <= frame.clientWidth ? [] :
  all(doc, "body *").filter((one) => one.getBoundingClientRect().right > frame.clientWidth + 1
    && !one.closest(".scroll, .zoom, pre, svg svg")).map((one) => one.outerHTML.slice(0, 80));
const cutOff = (doc) => all(doc, ".scroll")
  .filter((one) => one.innerText && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.innerText.slice(0, 80));
const overlapping = (doc) => all(doc, ".chart").flatMap((chart) => {
  const texts = all(chart, "text").filter((one) => one.textContent);
  const marks = [...texts, ...all(chart, "circle.dot")];
  const boxes = marks.map((one) => one.getBoundingClientRect());
  return texts.flatMap((one, n) => boxes.flatMap((other, m) => m > n
    && boxes[n].left + 1 < other.right && other.left + 1 < boxes[n].right
    && boxes[n].top + 3 < other.bottom && other.top + 3 < boxes[n].bottom
    ? [one.textContent + " / " + marks[m].textContent] : []));
});
const style = (doc, selector) => frame.contentWindow.getComputedStyle(doc.querySelector(selector));
const closed = (doc) => all(doc, "details:not([open])").length;
const fire = (name) => frame.contentWindow.dispatchEvent(new Event(name));
(async () => {
  for (const [name, width] of PAGES) {
    const doc = await open(name, width), facts = found[name + " " + width] = {};
    facts.text = doc.body.innerText.length;
    facts.overflowing = overflowing(doc);
    facts.links = [...doc.links].map((one) => one.href);
    facts.ids = all(doc, "[id]").map((one) => one.id);
    if (!doc.querySelector(".index")) {
      facts.scroll = style(doc, ".scroll").overflowX;
      facts.closed = [closed(doc), fire("beforeprint") && closed(doc)];
      facts.closed.push(fire("afterprint") && closed(doc));
    }
    const cut = cutOff(doc);
    all(doc, "details").forEach((one) => { one.open = true; });
    facts.overflowing.push(...overflowing(doc));
    facts.cut = [...cut, ...cutOff(doc)];
    facts.overlapping = overlapping(doc);
  }
  const doc = await open("index.html", 1400), steps = found.index = [];
  const shown = () => all(doc, ".index tbody tr").filter((one) => !one.hidden);
  const sort = () => doc.querySelector(".index th:nth-child(4) button").click();
  const search = doc.querySelector("#search");
  steps.push(shown().length);
  doc.querySelector("button[value=x]").click();
  steps.push(shown().length);
  search.value = "B29";
  search.oninput();
  steps.push(shown().length);
  for (const _ of [0, 1]) {
    sort();
    steps.push(shown()[0].querySelector("a").textContent);
  }
  document.querySelector("pre").textContent = JSON.stringify(found);
})();
</script>
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
        rows.append(PipelineRow(line, *links))
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


def in_browser(folder: Path, profile: Path) -> dict[str, Any]:
    """Open all pages at all widths in a headless browser and collect what it shows."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)}")
    pages = []
    for path in sorted(folder.glob("*.html")):
        for prefix, media in VARIANTS.items():
            text = path.read_text()
            assert media in text
            (folder / f"{prefix}{path.name}").write_text(
                text.replace(media, "@media all{") if media else text
            )
            pages += [(f"{prefix}{path.name}", width) for width in WIDTHS]
    harness = folder / "harness.htm"
    harness.write_text(HARNESS.replace("PAGES", json.dumps(pages)))
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--allow-file-access-from-files", "--hide-scrollbars", "--window-size=1500,1000",
            "--enable-logging=stderr", "--virtual-time-budget=600000", "--dump-dom",
            f"--user-data-dir={profile}", harness.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )  # fmt: skip
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    found: dict[str, Any] = json.loads(
        html.unescape(done.stdout.partition("<pre>")[2].partition("</pre>")[0])
    )
    return found


def test_pages_fit_every_screen_and_every_link_works(folder: Path, tmp_path: Path) -> None:
    found = in_browser(folder, tmp_path / "profile")
    assert found.pop("index") == [300, 298, 9, "b29", "b297"]  # b29, and b290 to b297
    for place, facts in found.items():
        page, _, width = place.partition(" ")
        assert facts["text"] > 100
        assert facts["overflowing"] == [], place
        if page.startswith("print."):
            continue  # paper has no columns of charts
        assert facts["overlapping"] == [], place
        if page == "tiny.html" and width == "1400":
            assert facts["cut"] == []
        for link in facts["links"]:
            parts = urlparse(link)
            assert parts.scheme == "file"
            assert Path(unquote(parts.path)).is_file(), link
            assert not parts.fragment or parts.fragment in facts["ids"], link
    screen, paper = (found[f"{prefix}tiny.html 1400"] for prefix in VARIANTS)
    assert paper["scroll"] == "visible"
    closed, printed, after = screen["closed"]
    assert closed == after > printed == 0
