"""A benchmark that stays noisy, in later runs of real doit processes."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from command_answers import answer
from ready_project import ReadyProject

MANIFEST = "configs/models/a.yaml"
BENCH = "bench:a:ort"
REASON = "case opt: other processes used"
NOISE = "noise: {interval: null, other_load: 1.0e-9}, budget: 50ms"


@contextmanager
def other_load() -> Iterator[None]:
    """Keep a processor busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def test_it_stays_visible_and_is_measured_again_on_request(ready: ReadyProject) -> None:
    ready.edit(MANIFEST, "noise: null", NOISE)
    with other_load():
        first = ready.doit()
        remeasured = ready.doit("build", "--remeasure", "a", program="buildsys")
    assert "last measurement was noisy" in remeasured.out
    again = ready.doit("build", "--json", program="buildsys")
    assert "`buildsys build --remeasure a` and nightly runs measure again" in again.err
    assert again.err.endswith("everything is up to date (7 targets, 1 noisy)\n")
    assert first.code == 0
    assert "7 passed, 1 noisy in" in first.out
    line, remedy = (line for line in first.out.splitlines() if line.startswith("noisy "))
    assert line.split()[1] == BENCH
    assert REASON in line
    assert "`buildsys build --remeasure a` and nightly runs measure again" in remedy
    results = {target["target"]: target for target in json.loads(again.out)["targets"]}
    assert (again.code, results[BENCH]["status"]) == (0, "noisy")
    assert REASON in results[BENCH]["reason"]
    assert results["verify:a:ort"]["status"] == "up-to-date"
    (bench,) = (one for one in answer(ready, "explain", BENCH)["targets"] if one["target"] == BENCH)
    assert (bench["state"], bench["last_run"]["status"]) == ("fresh", "noisy")
    assert REASON in bench["noisy"]
    assert "`buildsys build --remeasure a` measures again" in ready.buildsys("explain", BENCH).out
    assert "nothing would run" in ready.buildsys("plan").out
    listed = ready.doit("list", "--status", BENCH, program="buildsys").out
    assert listed.split()[0] == "noisy"
    report = (ready.root / "build/a/report/report.md").read_text()
    assert f"1 noisy: {BENCH}" in report
    best = ready.buildsys("best", "a").out
    assert "No engine to ship\nNo engine is verified with a steady benchmark: ort noisy." in best
    assert "`buildsys build --remeasure a` and nightly runs measure again" in best
    assert f"ort     noisy   {REASON}" in best
    ready.edit(MANIFEST, NOISE, "noise: null")
    assert "passed" in ready.doit(BENCH).out


def test_a_forced_run_measures_what_it_could_restore(ready: ReadyProject) -> None:
    assert ready.doit(BENCH).code == 0
    (ready.root / "build/a/bench/ort.json").unlink()
    assert "1 passed in" in ready.doit("build", "--force", "-s", BENCH, program="buildsys").out
    (ready.root / "build/a/bench/ort.json").unlink()
    assert "1 restored in" in ready.doit("build", "-s", BENCH, program="buildsys").out
