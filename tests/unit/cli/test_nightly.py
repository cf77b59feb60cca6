"""doit nightly and the files about runs, on a scripted executor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cli_doubles
import pytest
from cli_doubles import Doit, fail, passed

from buildsys.errors import CheckFailed, ManifestError, StageError
from buildsys.store.ledger import HistoryEntry
from buildsys.system.files import locked

CHECK = CheckFailed("output y is off", "raise verify.fp32.rtol")


@pytest.fixture
def nightly(doit: Doit) -> Doit:
    doit.models = ("a", "b")
    (doit.root / "dodo.py").touch()
    return doit


def written(doit: Doit) -> dict[str, Any]:
    """Return nightly.json; all files about the run must agree with it."""
    folder = doit.root / "build/nightly"
    assert sorted(path.name for path in folder.iterdir()) == [
        "junit.xml",
        "nightly.json",
        "summary.md",
    ]
    found: dict[str, Any] = json.loads((folder / "nightly.json").read_text())
    assert found["outcome"] in (folder / "summary.md").read_text().splitlines()[0]
    problems = ElementTree.parse(folder / "junit.xml").findall(".//failure")
    assert bool(problems) == (found["exit_code"] != 0)
    return found


def entry(target: str, status: str, started: str, why: str = "") -> HistoryEntry:
    return HistoryEntry(target, "key", status, started, 1.0, "", why)


def test_a_nightly_run_builds_everything_stale_and_writes_its_files(nightly: Doit) -> None:
    code, out = nightly("nightly")
    assert code == 0
    files = "build/nightly/summary.md and build/report/index.html"
    assert out.endswith(f"nightly: passed; see {files}\n")
    found = written(nightly)
    assert found["html"] == "build/report/index.html"
    assert (found["status"], found["outcome"], found["exit_code"]) == ("finished", "passed", 0)
    assert [one["target"] for one in found["targets"]] == list(nightly.session.actions)
    assert {one["status"] for one in found["targets"]} == {"passed"}
    nightly.fresh.update(nightly.session.actions)
    assert nightly("nightly")[0] == 0
    assert nightly.session.finished == {}
    assert written(nightly)["counts"]["up-to-date"] == len(nightly.session.actions)


def test_a_failure_stops_only_what_needs_it(nightly: Doit) -> None:
    nightly.actions["verify:a:ort"] = fail(CHECK)
    code, out = nightly("nightly")
    assert code == 1
    assert "failed     verify:a:ort  output y is off; raise verify.fp32.rtol" in out
    assert "never ran  bench:a:ort, report:a  needs verify:a:ort, which failed" in out
    assert "nightly: 1 failed, 2 never ran; see build/nightly/summary.md" in out
    found = written(nightly)
    assert (found["failed"], found["never_ran"]) == (["verify:a:ort"], ["bench:a:ort", "report:a"])
    ends = {one["target"]: one for one in found["targets"]}
    assert ends["verify:a:ort"]["error"] == "CheckFailed"
    assert ends["validate:a"]["log"] == "build/a/validate/result.log"
    assert ends["bench:a:ort"]["log"] == ""
    assert ends["report:b"]["status"] == "passed"


def change_sessions(patch: pytest.MonkeyPatch, change: Callable[[Any], object]) -> None:
    """Change every session that doit opens."""
    make = cli_doubles.make_session

    def changed(*arguments: Any) -> Any:
        session, executor = make(*arguments)
        change(session)
        return session, executor

    patch.setattr(cli_doubles, "make_session", changed)


def test_broken_manifests_are_listed_and_the_others_built(
    nightly: Doit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = "configs/models/c.yaml"
    error = ManifestError(Path(file), ("modle",), "unknown field", line=1)
    change_sessions(monkeypatch, lambda session: session.project.broken.update({file: [error]}))
    code, out = nightly("nightly")
    assert code == 3
    assert "broken  configs/models/c.yaml:1: modle: unknown field" in out
    found = written(nightly)
    assert found["outcome"] == "1 broken manifest"
    assert found["manifests"][0]["file"] == "configs/models/c.yaml"
    assert found["counts"]["passed"] == len(nightly.session.actions)
    assert nightly("nightly", "a")[0] == 0
    files = ("--junit", str(tmp_path / "j.xml"), "--summary", str(tmp_path / "s.md"))
    for names in ((), ("a",)):
        code, out = nightly("build", *names, *files)
        assert code == (0 if names else 3)
        sentence = f"{file}:1: modle: unknown field"
        assert (f"failed       manifest:{file}\n  {sentence}" in out) == (not names)
        assert (sentence in (tmp_path / "s.md").read_text()) == (not names)
        failures = ElementTree.parse(tmp_path / "j.xml").findall(".//failure")
        assert len(failures) == (not names)
    assert nightly("build", "c") == (3, f"ERROR: {sentence}\n")


def test_an_ignored_target_never_ran(nightly: Doit) -> None:
    assert nightly("ignore", "engine:a:ort")[0] == 0
    code, out = nightly("nightly", "a")
    assert code == 2
    assert "never ran  engine:a:ort  excluded by `doit ignore`; `doit forget engine:a:ort`" in out
    assert "verify:a:ort" in written(nightly)["never_ran"]


@pytest.mark.parametrize(
    ("status", "before", "regressed"),
    [
        ("failed", ["passed"], True),
        ("failed", ["failed", "passed"], False),
        ("failed", [], False),
        ("unavailable", ["restored"], True),
        ("unavailable", ["unavailable", "passed"], False),
    ],
)
def test_what_passed_before_has_regressed(
    nightly: Doit, status: str, before: list[str], regressed: bool
) -> None:
    target = "engine:a:rtx"
    end = fail(CHECK) if status == "failed" else lambda: passed(status="unavailable", reason="no")
    nightly.actions[target] = end
    runs = [entry(target, status, "2999-01-01T00:00:00Z")]
    runs += [entry(target, one, f"2026-01-0{9 - at}T00:00:00Z") for at, one in enumerate(before)]
    nightly.runs = {target: runs}
    code, out = nightly("nightly")
    found = written(nightly)
    assert (found["regressed"] == [target]) == regressed
    assert (f"regressed  {target}" in out) == regressed
    assert code == (1 if regressed or status == "failed" else 0)
    last = {one["target"]: one["last_passed"] for one in found["targets"]}[target]
    assert bool(last) == ("passed" in before or "restored" in before)


def test_a_flaky_target_is_repeated_once(nightly: Doit) -> None:
    attempts: list[str] = []

    def fails_at_first() -> Any:
        attempts.append("bench")
        if len(attempts) == 1:
            raise StageError("the clock jumped")
        return passed()

    nightly.actions["bench:a:ort"] = fails_at_first
    nightly.flaky = {"a": ["bench"]}
    code, out = nightly("nightly")
    assert (code, len(attempts)) == (0, 2)
    assert "flaky  bench:a:ort  passed when repeated; the clock jumped" in out
    assert written(nightly)["flaky"] == ["bench:a:ort"]
    attempts.clear()
    assert nightly("build:a")[0] == 2, "an ordinary run repeats nothing"


def test_a_target_fails_for_good_at_the_second_failure(nightly: Doit) -> None:
    attempts: list[str] = []
    nightly.actions["verify:a:ort"] = lambda: attempts.append("verify") or fail(CHECK)()
    nightly.flaky = {"a": ["verify"]}
    assert nightly("nightly", "verify:a:ort")[0] == 1
    assert len(attempts) == 2
    assert written(nightly)["failed"] == ["verify:a:ort"]


def test_a_rebuild_of_engines_includes_what_reads_them_and_names_its_reason(
    nightly: Doit,
) -> None:
    nightly.build_all()
    nightly.fresh.update(nightly.session.actions)
    code, out = nightly("nightly", "--rebuild", "engines", "a")
    assert code == 0
    stages = ("engine", "verify", "bench", "report")
    assert set(nightly.session.finished) == {
        target for target in nightly.session.actions.of("a") if target.partition(":")[0] in stages
    }
    assert "run          verify:a:ort  … rebuild of engine requested" in out
    assert written(nightly)["rebuild"] == ["engine"]


def test_an_unknown_stage_is_one_sentence(nightly: Doit) -> None:
    code, out = nightly("nightly", "--rebuild", "engins")
    assert (code, out) == (3, "ERROR: there is no stage 'engins'; nearest: engine\n")


def test_a_project_without_manifests_is_an_error(
    nightly: Doit, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_sessions(monkeypatch, lambda session: session.project.models.clear())
    code, out = nightly("nightly")
    sentence = "there is nothing to build: configs/models has no manifest"
    assert (code, out.count(sentence)) == (3, 1)
    found = written(nightly)
    assert (found["status"], found["exit_code"]) == ("refused", 3)
    assert sentence in found["error"]


def record_running(doit: Doit) -> None:
    """Write what a run writes when it starts."""
    folder = doit.root / "build/nightly"
    folder.mkdir(parents=True, exist_ok=True)
    run = {"status": "running", "pid": 4711, "host": "ci", "started": "2026-11-22T02:00:00Z"}
    (folder / "nightly.json").write_text(json.dumps(run))


def test_a_second_run_ends_at_once_and_names_the_first(nightly: Doit) -> None:
    path = nightly.root / ".buildsys/nightly.lock"
    path.parent.mkdir()
    record_running(nightly)
    first = "process 4711 on ci, started 2026-11-22 02:00:00 UTC"
    with locked(path):
        code, out = nightly("nightly")
    problem = f"ERROR: another nightly run is in progress: {first}; wait until it has finished\n"
    assert (code, out) == (2, problem)
    code, out = nightly("nightly")
    assert code == 0
    assert f"the previous nightly run ({first}) was killed" in out
    assert written(nightly)["killed"]["started"] == "2026-11-22T02:00:00Z"
    assert "was killed" not in nightly("nightly")[1]


def test_an_interrupted_run_leaves_files_that_say_so(nightly: Doit) -> None:
    def interrupt() -> Any:
        nightly.session.interrupt(130)
        raise KeyboardInterrupt

    nightly.actions["engine:a:ort"] = interrupt
    code, out = nightly("nightly")
    assert code == 130
    found = written(nightly)
    assert (found["status"], found["exit_code"]) == ("interrupted", 130)
    assert found["outcome"].startswith("interrupted")
    assert "engine:a:ort" in found["never_ran"]
    assert nightly.session.finished["simplify:a"].status == "passed"
    nightly.actions.clear()
    code, out = nightly("nightly")
    assert code == 0
    assert "was killed" not in out


def test_an_ordinary_run_writes_junit_and_a_summary(nightly: Doit) -> None:
    nightly.actions["verify:a:ort"] = fail(CHECK)
    files = ("--junit", "out/junit.xml", "--summary", "out/summary.md")
    code, _ = nightly("build", "--continue", *files)
    assert code == 1
    root = ElementTree.parse(nightly.root / "out/junit.xml")
    assert len(root.findall(".//testcase")) == len(nightly.session.actions)
    (failure,) = root.findall(".//failure")
    assert failure.get("message") == "output y is off; raise verify.fp32.rtol"
    assert "# Build: 1 failed, 2 never ran" in (nightly.root / "out/summary.md").read_text()
    code, out = nightly("build", "--continue", "--json", *files)
    assert json.loads(out[out.index("{") : out.rindex("}") + 1])["failed"] == ["verify:a:ort"]
    assert len(ElementTree.parse(nightly.root / "out/junit.xml").findall(".//failure")) == 1


def test_a_refused_run_leaves_no_files_of_an_earlier_one(nightly: Doit) -> None:
    files = ("--junit", "out/junit.xml", "--summary", "out/summary.md")
    assert nightly("build", *files)[0] == 0
    assert nightly("build", "--tag", "nihgtly", *files)[0] == 3
    assert "there is no tag 'nihgtly'" in (nightly.root / "out/summary.md").read_text()
    assert len(ElementTree.parse(nightly.root / "out/junit.xml").findall(".//failure")) == 1


def test_a_file_that_cannot_be_written_is_refused_before_the_run(nightly: Doit) -> None:
    (nightly.root / "file").touch()
    for name in ("file/junit.xml", "."):
        code, out = nightly("build", "--junit", name)
        assert (code, out.startswith("ERROR: cannot write ")) == (3, True)
        assert nightly.session.finished == {}
