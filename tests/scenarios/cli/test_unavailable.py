"""An engine that cannot be built here, in every later run of real doit processes."""

import json
import shutil

from command_answers import answer
from ready_project import ReadyProject

GONE = ["engine:a:gone", "verify:a:gone", "bench:a:gone"]
MANIFEST = "configs/models/a.yaml"
REASON = "there is no /nowhere/bin/python"


def test_it_remains_visible(ready: ReadyProject) -> None:
    ready.edit(MANIFEST, "name: ort}]", "name: ort}, {backend: onnxruntime, name: gone, "
               "toolchain: gone}]")  # fmt: skip
    toolchain = "toolchains: {gone: {python: /nowhere/bin/python}}\n"
    (ready.root / "configs/project.yaml").write_text(toolchain)
    first = ready.doit()
    assert first.code == 0
    assert "8 passed, 3 unavailable in" in first.out
    for _ in range(2):  # checked in full, then remembered
        again = ready.doit()
        assert again.code == 0
        listed, *_, last = again.out.splitlines()
        assert last == "everything is up to date (8 targets, 3 unavailable)"
        assert listed.startswith("unavailable  engine:a:gone  ")
        assert REASON in listed
    document = json.loads(ready.doit("build", "--json", program="buildsys").out)
    results = {target["target"]: target for target in document["targets"]}
    unavailable = [name for name, one in results.items() if one["status"] == "unavailable"]
    assert set(unavailable) == set(GONE)
    assert REASON in results[GONE[0]]["reason"]
    listed = ready.doit("list", "--status", program="buildsys").out
    assert [line.split()[1] for line in listed.splitlines() if line[:1] == "u"] == unavailable
    explained = {
        one["target"]: one.get("unavailable") for one in answer(ready, "explain")["targets"]
    }
    assert [target for target, reason in explained.items() if reason] == GONE
    assert REASON in explained[GONE[0]]
    assert list(answer(ready, "plan")["unavailable"]) == GONE
    assert "3 unavailable on this machine: engine:a:gone" in ready.buildsys("plan").out
    assert "8 fresh, 3 unavailable" in ready.buildsys("explain").out
    report = (ready.root / "build/a/report/report.md").read_text()
    assert "3 unavailable: engine:a:gone, verify:a:gone, bench:a:gone" in report
    shutil.rmtree(ready.root / "build")
    restored = ready.doit()
    assert restored.code == 0
    assert not restored.restored & set(GONE)
    assert restored.out.splitlines()[-1].startswith("8 restored, 3 unavailable in")


def test_an_engine_runs_once_the_machine_meets_its_needs(ready: ReadyProject) -> None:
    engine = ["engine:a:lab", "verify:a:lab", "bench:a:lab"]
    ready.edit(MANIFEST, "name: ort}]", "name: ort}, {backend: onnxruntime, name: lab, "
               "needs: {labels: [lab-1]}}]")  # fmt: skip
    planned = ready.buildsys("plan", *engine).out
    assert "it needs the label lab-1; run it on a machine that has it" in planned
    without = ready.doit(*engine)
    assert without.code == 0
    assert "3 unavailable in" in without.out
    assert "it needs the label lab-1" in without.out
    assert not (ready.root / "build/a/engine/lab/engine.onnx").exists()
    ready.environment["BUILDSYS_LABELS"] = "lab-2,lab-1"
    explained = answer(ready, "explain", engine[0])["targets"]
    assert "this machine no longer lacks the label lab-1" in json.dumps(explained)
    with_label = ready.doit(*engine)
    assert with_label.passed >= set(engine[:2])  # a benchmark may be noisy
    del ready.environment["BUILDSYS_LABELS"]  # the engine is not that of this machine any more
    assert "3 unavailable in" in ready.doit(*engine).out
