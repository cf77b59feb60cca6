"""Outputs of earlier runs are never taken for current ones after a failed run."""

import json
import os
import re
import signal

from project_folder import TIMEOUT_S, wait_until
from ready_project import NETWORK, UP_TO_DATE, VALUES, ReadyProject, contents

MANIFEST = "configs/models/a.yaml"
TOO_STRICT = "validate: {rtol: 1.0e-12, cosine: 1.0}\n"
LINE = re.compile(r"^build/a: \d+ outputs? (?:is|are) stale: (.+)$", re.MULTILINE)


def fail_validation(project: ReadyProject) -> None:
    """Ask for more than floating point gives, of other inputs."""
    path = project.root / MANIFEST
    path.write_text(path.read_text() + TOO_STRICT)
    project.edit(VALUES, "SCALE = 1.0", "SCALE = 2.0")


def repair(project: ReadyProject) -> None:
    project.edit(MANIFEST, TOO_STRICT, "")
    project.edit(VALUES, "SCALE = 2.0", "SCALE = 1.0")


def reports(project: ReadyProject) -> dict[str, bytes]:
    files = (project.root / "build/a/report").iterdir()
    return {path.name: path.read_bytes() for path in files if path.suffix not in (".log", ".svg")}


def verdict(project: ReadyProject) -> tuple[str, str]:
    """Return what both reports say on top."""
    found = reports(project)
    return json.loads(found["report.json"])["verdict"]["status"], found[
        "report.md"
    ].decode().splitlines()[0]


PASSED = ("passed", "# a: build report")
FAILED = ("failed", "# a: build failed")


def check_repaired(project: ReadyProject) -> None:
    """Check that the next run removes every trace of the failure and completes."""
    mended = project.doit()
    assert (mended.code, LINE.search(mended.out)) == (0, None), mended
    assert (verdict(project), reports(project).keys()) == (PASSED, {"report.json", "report.md"})
    assert project.doit() == UP_TO_DATE
    assert contents(project.root / "build") == project.clean_contents()
    answer = project.buildsys("doctor", "a:ort")
    assert (
        answer.code,
        "it matches its manifest and has passed its checks\n" in answer.out,
    ) == (0, True)


def doctors_kinds(project: ReadyProject, name: str = "a:ort") -> list[str]:
    answer = project.buildsys("doctor", name, "--json")
    (engine,) = json.loads(answer.out)["engines"]
    assert (answer.code, engine["runs"], engine["current"]) == (1, True, False)
    return [reason["kind"] for reason in engine["reasons"]]


def test_a_failed_check(ready_built: ReadyProject) -> None:
    before = reports(ready_built)
    fail_validation(ready_built)
    ran = ready_built.doit()
    assert ran.code == 1
    assert LINE.findall(ran.out) == ["verify ort, bench ort"]
    assert "report on this failure: build/a/report/report.md\n" in ran.out
    for _ in range(2):  # the second time the report is that on the first failure
        assert verdict(ready_built) == FAILED
        now = reports(ready_built)
        assert (now["last_passed.md"], now["last_passed.json"]) == (
            before["report.md"],
            before["report.json"],
        )
        again = ready_built.doit("-r", "json")
        assert again.code == 1
        json.loads(again.out)  # and nothing else
    text = now["report.md"].decode()
    rows = dict(re.findall(r"^\| `(\S+)` +\| (\S+)", text, re.MULTILINE))
    assert rows["validate:a"] == "FAILED"
    assert (rows["engine:a:ort"], rows["verify:a:ort"], rows["bench:a:ort"]) == (
        "passed",
        "stale",
        "stale",
    )
    assert "p50" not in text  # a benchmark of other inputs is left out
    assert "The report of the last successful run is last" in text
    assert json.loads(now["report.json"])["status"] == "failed"

    assert (
        doctors_kinds(ready_built)
        == doctors_kinds(ready_built, "build/a/engine/ort")
        == ["check", "check"]
    )
    explained = ready_built.buildsys("explain", "report:a").out
    assert "last run failed: it reports a run in which validate:a failed\n" in explained
    assert "edited by hand" not in explained
    repair(ready_built)
    check_repaired(ready_built)


def test_an_error_in_the_first_stage(ready_built: ReadyProject) -> None:
    files = {name: (ready_built.root / "build" / name).read_bytes() for name in ready_built.files()}
    (ready_built.root / NETWORK).write_bytes(b"not a network")
    ran = ready_built.doit("-n", "2", "--continue")
    assert ran.code == 2
    (names,) = LINE.findall(ran.out)
    assert names == "engine ort, verify ort, bench ort, export, reference, simplify and 1 more"
    assert verdict(ready_built) == FAILED
    text = (ready_built.root / "build/a/report/report.md").read_text()
    assert "needs reference:a" in text
    assert set(doctors_kinds(ready_built)) == {"stale", "check"}
    for name, content in files.items():  # bad input loses nothing that was built
        if not name.startswith("a/report/") and not name.endswith(".log"):
            assert (ready_built.root / "build" / name).read_bytes() == content, name


def test_a_first_build_leaves_nothing_stale(ready: ReadyProject) -> None:
    fail_validation(ready)
    first = ready.doit()
    assert first.code == 1
    assert " stale: " not in first.out
    assert "on this failure" not in first.out
    assert not (ready.root / "build/a/report").exists()


def test_models_that_were_not_reached(ready_built: ReadyProject) -> None:
    ready_built.add_model("b")
    assert ready_built.doit().code == 0
    fail_validation(ready_built)
    ran = ready_built.doit()
    assert re.search(
        r"^build/b: 6 outputs are stale:"
        r" engine ort, verify ort, bench ort, reference, simplify, validate$",
        ran.out,
        re.MULTILINE,
    )
    answer = json.loads((ready_built.root / "build/b/report/report.json").read_text())
    assert answer["verdict"] == {
        "status": "stale",
        "text": "STALE: 7 of 8 targets are not up to date",
        "doubts": "",
    }


def test_a_report_that_cannot_be_replaced_is_reported(ready_built: ReadyProject) -> None:
    (ready_built.root / "build/a/report/last_passed.md").mkdir()
    fail_validation(ready_built)
    ran = ready_built.doit()
    assert ran.code == 1
    (line,) = [line for line in ran.out.splitlines() if line.startswith("build/a: 3 outputs are")]
    assert (
        "stale: report, verify ort, bench ort; the report could not be updated: cannot pub" in line
    )


def test_after_a_kill_the_next_run_leaves_nothing_stale(ready_built: ReadyProject) -> None:
    fail_validation(ready_built)
    ready_built.hold()
    process = ready_built.start()
    wait_until(lambda: ready_built.is_held, "reference:a is at work")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    ready_built.finish_runs()
    assert verdict(ready_built) == PASSED  # nobody was left to say otherwise
    assert ready_built.doit().code == 1
    assert verdict(ready_built) == FAILED


def test_an_interrupted_run_reports_on_the_models_it_reached(ready_built: ReadyProject) -> None:
    ready_built.edit(VALUES, "SCALE = 1.0", "SCALE = 2.0")
    ready_built.hold()
    process = ready_built.start()
    wait_until(lambda: ready_built.is_held, "reference:a is at work")
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, "")
    assert LINE.findall(out) == ["engine ort, verify ort, bench ort, reference, simplify, validate"]
    assert json.loads(reports(ready_built)["report.json"])["verdict"]["status"] == "stale"
