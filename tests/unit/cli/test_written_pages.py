"""Pages written at the end of a run."""

import dataclasses
import json
import re
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import make_session, write_result
from PIL import Image

from buildsys.cli.commands import pages
from buildsys.cli.commands.pages import update_pages, write_pages
from buildsys.cli.session import BuildSession
from buildsys.execution.run_records import Outcome
from buildsys.execution.stale_reasons import StaleReason, encode_reasons
from buildsys.history.builds import Build
from buildsys.history.database import History, digest_of, history_file
from buildsys.report.assemble import assemble
from buildsys.report.report_types import Table, as_json

LATENCY = {"latency_p50_ms": 2.0, "latency_interval_ms": [1.95, 2.05]}


@pytest.fixture
def session(tmp_path: Path) -> BuildSession:
    """Return a session with results of all targets, which are up to date."""
    session, executor = make_session(tmp_path)
    session.project.state.mkdir(exist_ok=True)
    for target in session.actions:
        write_result(session, target, status="passed", started="2026-11-20T14:03Z")
        result = session.project.build / session.actions[target].outputs["result"].path
        result.write_text(json.dumps({**json.loads(result.read_text()), "target": target}))
    session.finished["report:net"] = Outcome("report:net", "passed", 0.1)
    executor.fresh = set(session.actions)
    return session


def page(session: BuildSession) -> str:
    write_pages(session, ["net"])
    return (session.project.build / "report/net.html").read_text()


def add_build(session: BuildSession, number: int, **more: Any) -> None:
    build = Build(
        **{
            "id": f"{number:032}", "run": "r", "project": "", "target": "bench:net:ort",
            "model": "net", "stage": "bench", "variant": "ort", "key": "k", "how": "ran",
            "status": "passed", "started": f"2026-11-{number:02}T10:00:00Z",
            "position": float(number), "seconds": 1.0, "reason": "", "why": "",
            "revision": "abcdef0123", "dirty": True, "machine": "m", "machine_id": "m",
            "environment": "", "manifest": "", "outputs": {}, "figures": LATENCY, **more,
        }
    )  # fmt: skip
    history = History(history_file(session.project.state))
    history.add(build)
    history.close()


def test_a_page_without_a_report_shows_the_state_of_the_targets(session: BuildSession) -> None:
    text = page(session)
    assert "net" in text
    assert 'href="../net/export/export.json"' in text
    assert (session.project.build / "report/index.html").is_file()


def test_a_page_shows_what_failed_before_there_was_a_report(session: BuildSession) -> None:
    del session.finished["report:net"]
    session.finished["validate:net"] = Outcome("validate:net", "failed", 1.0, "y differs")
    text = page(session)
    assert "y differs" in text
    assert "Targets that are not up to date are shown without their figures" in text


def test_a_page_shows_the_history(session: BuildSession) -> None:
    for number in (1, 2, 3):
        add_build(session, number)
    text = page(session)
    assert "p50, last 3 builds" in text
    assert "2026-11-03 10:00 abcdef01+" in text
    assert "no significant change: 2.00 → 2.00 ms" in text


def test_a_page_says_which_build_a_person_has_accepted(session: BuildSession) -> None:
    for number in range(1, 6):
        gate = {"target": "gate:net:ort", "stage": "gate", "reason": f"reason {number}"}
        gate |= {"status": "accepted" if number == 4 else "failed", "figures": {}}
        add_build(session, number, **({} if number % 2 else gate))
    text = page(session)
    assert "2026-11-03 10:00 abcdef01+ accepted: reason 4: 2.00 ms" in text
    assert "reason 2" not in text


def test_a_page_names_the_causes_of_a_run(session: BuildSession) -> None:
    """An input that another target has changed is none."""
    cause, effect = (
        encode_reasons([StaleReason(kind, name, "0" * 32, "1" * 32)])
        for kind, name in (("source", "plugins/net.py"), ("input", "net/export/model.onnx"))
    )
    add_build(session, 1)
    add_build(session, 2, run="s", target="export:net", stage="export", variant="", why=cause)
    add_build(session, 3, run="s", why=effect)
    text = page(session)
    assert "<b>built because</b> plugins/net.py changed" in text
    add_build(session, 4, run="t", why=effect)
    assert "<b>built because</b> input net/export/model.onnx changed" in page(session)


def test_a_page_shows_builds_of_one_machine(
    session: BuildSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        add_build(session, number)
    for number in (4, 5):
        add_build(session, number, machine_id="other", figures={"latency_p50_ms": 9.0})
    monkeypatch.setattr(pages, "machine_id", lambda: "m")
    assert "p50, last 3 builds" in page(session)
    monkeypatch.setattr(pages, "machine_id", lambda: "new")
    assert "p50, last 2 builds" in page(session)


def test_a_page_says_that_the_history_cannot_be_read(session: BuildSession) -> None:
    assert "There is no earlier build" in page(session)
    history_file(session.project.state).write_bytes(b"not a database" * 500)
    found = page(session)
    assert "The history cannot be read: <code>buildsys history</code> says why." in found
    assert "There is no earlier build" not in found


def test_a_picture_is_an_image_without_scripts(session: BuildSession) -> None:
    picture = b'"><script>alert(1)</script>\xff'
    report, build = session.actions["report:net"], session.project.build
    content = as_json(assemble("net", report.options["manifest"], {}, {}))
    (build / report.outputs["result"].path).write_text(json.dumps({"model": "net", **content}))
    file = build / report.outputs["picture.exported"].path
    file.write_bytes(picture)
    image = f'<img src="data:image/svg+xml;base64,{b64encode(picture).decode()}"'
    text = page(session)
    assert image in text
    assert picture.decode(errors="replace") not in text
    file.write_bytes(picture * 10_000)
    text = page(session)
    assert "Picture of the exported graph</summary>" not in text
    assert 'href="../net/report/exported.svg"' in text


def test_images_that_a_table_names_are_small_pictures(
    session: BuildSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = session.project.root
    (root / "val").mkdir()
    names = [f"val/{number}.png" for number in range(14)]
    for name in names:
        Image.new("RGB", (640, 480), "red").save(root / name)
    (root / "val/broken.png").write_text("no image")
    outside = tmp_path.parent / f"{tmp_path.name}.png"
    Image.new("RGB", (8, 8)).save(outside)
    (root / "val/link.png").symlink_to(outside)
    outer = (f"../{outside.name}", str(outside), "val/link.png", "a\0.png", f"{'a' * 300}.png")
    listed = (*outer, "val/broken.png", "row 7", *names)
    rows = tuple((name, "cat") for name in listed)
    table = Table("Changed", ("sample", "label"), rows, images=listed)
    report = dataclasses.replace(assemble("net", {}, {}, {}), tables=(table,))
    monkeypatch.setattr(pages, "current_report", lambda *_: (report, False))
    text = page(session)
    pictures = re.findall(r'<img src="data:image/png;base64,([^"]*)"', text)
    assert len(pictures) == 12
    with Image.open(BytesIO(b64decode(pictures[0]))) as picture:
        assert picture.size == (96, 72)
    assert "<figcaption>sample val/0.png\nlabel cat</figcaption>" in text
    outside.unlink()


def test_the_index_keeps_other_models_and_drops_removed_ones(session: BuildSession) -> None:
    text = page(session)
    start, _, row = text.removesuffix(" -->\n").rpartition(" ")
    removed = {**json.loads(b64decode(row)), "model": "gone", "page": "gone.html"}
    gone = session.project.build / "report/gone.html"
    gone.write_text(f"{start} {b64encode(json.dumps(removed).encode()).decode()} -->\n")
    other = gone.with_name("notes.html")
    other.write_text("not a page")
    for file, is_marked in (("models/gone.yaml", True), ("x.yaml", False)):  # of unknown models
        vars(session.project)["broken"] = {file: ["no colon in line 3"]}
        index = write_pages(session, [])
        assert index is not None
        assert 'href="gone.html"' in index.read_text()
        assert ("no colon in line 3; the last build is shown" in index.read_text()) == is_marked
        assert ('<span class="pill broken">manifest broken' in index.read_text()) == is_marked
    vars(session.project)["broken"] = {}
    index = write_pages(session, [])
    assert index is not None
    assert 'href="net.html"' in index.read_text()
    assert "gone" not in index.read_text()
    assert [path.exists() for path in (gone, other)] == [False, True]
    gone.with_name("net.html").unlink()
    assert write_pages(session, []) is None
    assert not index.exists()


def test_a_model_without_html_has_no_page(session: BuildSession) -> None:
    model = session.project.models["net"]
    model.data["report"]["formats"] = ["json"]
    vars(model)["text"] = json.dumps(model.data)
    assert update_pages(session, ["net"]) == ""
    assert not (session.project.build / "report").exists()


def test_a_fault_of_a_page_is_one_line(
    session: BuildSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("no\nreason")

    monkeypatch.setattr(pages, "render_model", fail)
    line = update_pages(session, ["net"])
    assert line.startswith("the pages cannot be written: unexpected ZeroDivisionError: no; ")
    assert Path(line.rpartition(" ")[2]).is_file()


def test_a_changed_environment_is_described_by_versions(session: BuildSession) -> None:
    before = {"tool:onnx": "1", "tool:onnx (files)": "a", "tool:numpy (files)": "b", "env:X": "1"}
    after = {"tool:onnx": "2", "tool:onnx (files)": "c", "tool:numpy (files)": "d", "env:X": "1"}
    history = History(history_file(session.project.state))
    for number, environment in enumerate((before, after), 1):
        text = json.dumps(environment)
        add_build(session, number, environment=digest_of(text))
        history.add(history.builds()[0], texts=(text,))
    history.close()
    assert "onnx 1 → 2" in page(session)
