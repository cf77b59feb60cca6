"""Pages in a real browser."""

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
    IndexRow,
    Picture,
    PipelineRow,
    index_row,
    page_name,
    render_index,
    render_model,
)

GENERATED = "2026-11-22T13:30:00Z"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (390, 1400)
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
(async () => {
  for (const [name, width] of PAGES) {
    const doc = await open(name, width), facts = found[name + " " + width] = {};
    facts.text = doc.body.innerText.length;
    facts.overflowing = overflowing(doc);
    facts.links = [...doc.links].map((one) => one.href);
    facts.ids = all(doc, "[id]").map((one) => one.id);
    all(doc, "details").forEach((one) => { one.open = true; });
    facts.overflowing.push(...overflowing(doc));
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
        pictures=(Picture("Picture of the graph", f"data:image/svg+xml,{quote(picture)}"),),
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
    pages = [(path.name, width) for path in sorted(folder.glob("*.html")) for width in WIDTHS]
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
        assert facts["text"] > 100
        assert facts["overflowing"] == [], place
        for link in facts["links"]:
            parts = urlparse(link)
            assert parts.scheme == "file"
            assert Path(unquote(parts.path)).is_file(), link
            assert not parts.fragment or parts.fragment in facts["ids"], link
