"""Models of commands, built by real doit processes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from project_folder import wait_until
from python_environments import Environment
from ready_project import ReadyProject

BUILD, CHECK = "command:tiny:build", "command:tiny:check"
REPORT = "report:tiny"
MODEL = "configs/models/tiny.yaml"
MANIFEST = """\
model: tiny
commands:
  - name: build
    run: [python, "{inputs.script}", "{inputs.weights}", "{outputs.model}", --scale, "2"]
    inputs: {script: tools/build.py, weights: weights/}
    outputs: {model: model/}
    env: {LEVEL: "1"}
  - name: check
    run: sh -c 'cp {inputs.model}/figures.json {figures}'
    inputs: {model: "{commands.build.model}"}
    limits: {difference: {max: 0.5}}
"""
BUILDER = """\
import json
import os
import sys
from pathlib import Path

from parts import name

weights, model, _, scale = sys.argv[1:]
print("building", Path.cwd().name, sorted(path.name for path in Path().iterdir()))
total = sum(float(path.read_text()) for path in sorted(Path(weights).glob("*.txt")))
Path(model, "data").mkdir(parents=True)
Path(model, "data", name).write_text(f"{total} {scale} {os.environ['LEVEL']}")
difference = {"value": total - 3, "unit": "tokens", "low": -1, "high": 1}
Path(model, "figures.json").write_text(json.dumps({"difference": difference}))
Path("scratch.txt").write_text("left out")
"""


@pytest.fixture
def project(ready_place: ReadyProject) -> Iterator[ReadyProject]:
    """A project with one model that has no network."""
    with ready_place.cleared():
        ready_place.create()
        write(ready_place, MODEL, MANIFEST)
        write(ready_place, "tools/build.py", BUILDER)
        write(ready_place, "tools/parts.py", "name = 'sum.txt'\n")
        write(ready_place, "weights/a.txt", "1")
        write(ready_place, "weights/b.txt", "2")
        yield ready_place


def write(project: ReadyProject, path: str, text: str) -> None:
    file = project.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def result(project: ReadyProject, command: str) -> dict[str, Any]:
    path = project.root / f"build/tiny/command/{command}/command.json"
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def log(project: ReadyProject, command: str) -> str:
    return (project.root / f"build/tiny/command/{command}/command.log").read_text()


def test_commands_are_built_checked_reported_and_restored(project: ReadyProject) -> None:
    first = project.doit()
    assert (first.code, first.passed) == (0, {BUILD, CHECK, REPORT}), first.out + first.err
    model = project.root / "build/tiny/command/build/model"
    assert (model / "data/sum.txt").read_text() == "3.0 2 1"
    assert not list((project.root / "build").rglob("scratch.txt"))
    assert "['inputs', 'tmp']" in log(project, "build")
    assert "removed scratch.txt, which no output declares" in log(project, "build")
    found = result(project, "check")["figures"]
    assert found == {
        "difference": {
            "value": 0.0, "unit": "tokens", "interval": [-1.0, 1.0], "max": 0.5, "passed": True,
        }
    }  # fmt: skip
    assert "difference 0 ±1.0 tokens" in first.out
    report = (project.root / "build/tiny/report/report.md").read_text()
    assert "## Commands" in report
    assert "## Engines" not in report
    page = (project.root / "build/report/tiny.html").read_text()
    assert '<h2 id="table1">Commands</h2>' in page
    assert '<h2 id="graph">' not in page
    for name in ("command/build/command.log", "command/check/command.json"):
        assert f'href="../tiny/{name}"' in page
    history = json.loads(project.buildsys("history", "--json", CHECK).out)
    assert history["builds"][0]["figures"]["figures"] == found
    assert not project.doit().ran
    # a file of a folder is an output, and restored
    (model / "data/sum.txt").write_text("edited")
    again = project.doit()
    assert again.restored == again.ran == {BUILD}
    assert (model / "data/sum.txt").read_text() == "3.0 2 1"


EDITS = {
    "weights/b.txt": ("weights/b.txt", "2", "2.0", "weights/"),
    "module": ("tools/parts.py", "sum", "all", "tools/parts.py"),
    "argv": (MODEL, '"2"]', '"3"]', "run"),
    "env": (MODEL, 'LEVEL: "1"', 'LEVEL: "2"', 'env.LEVEL: "1" → "2"'),
}


def test_a_change_reruns_with_its_explanation(project: ReadyProject) -> None:
    assert project.doit().code == 0
    for path, old, new, why in EDITS.values():
        text = (project.root / path).read_text()
        write(project, path, text.replace(old, new))
        explained = project.buildsys("explain", BUILD).out
        assert why in explained, explained
        done = project.doit(CHECK)
        assert done.ran == {BUILD} if path.startswith("weights/b") else {BUILD} <= done.ran
        write(project, path, text)
        undone = project.doit(CHECK)
        assert undone.restored == undone.ran
        assert BUILD in undone.restored
    project.edit(MODEL, 'LEVEL: "1"}', 'LEVEL: "1", OTHER: null}')
    assert project.doit(BUILD).ran == {BUILD}
    project.environment["OTHER"] = "set"
    assert "read $OTHER" in project.buildsys("explain", BUILD).out
    assert project.doit(BUILD).ran == {BUILD}
    assert "set" not in json.dumps(result(project, "build")["run"])


def test_versions_of_distributions_and_programs_are_in_the_key(project: ReadyProject) -> None:
    environment = Environment(project.root / "envs/other", "numpy")
    program = project.root / "envs/other/bin/tool"
    program.write_text("#!/bin/sh\necho tool 1.0\n")
    program.chmod(0o755)
    environment.relabel("numpy", "1.1")
    write(project, "configs/project.yaml", "toolchains: {other: {python: envs/other/bin/python}}\n")
    fields = "toolchain: other\n    versions: [numpy]\n    probes: [[tool, --version]]\n"
    project.edit(MODEL, "    env:", f"    {fields}    env:")
    assert project.doit(BUILD).code == 0
    assert result(project, "build")["toolchain"]["name"] == "other"
    assert result(project, "build")["toolchain"]["numpy"] == "1.1"
    assert not project.doit(BUILD).ran
    environment.relabel("numpy", "1.2")
    assert "numpy 1.1 → 1.2" in project.buildsys("explain", BUILD).out
    assert project.doit(BUILD).ran == {BUILD}
    program.write_text("#!/bin/sh\necho tool 1.10\n")
    assert "tool --version tool 1.0 → tool 1.10" in project.buildsys("explain", BUILD).out
    assert project.doit(BUILD).ran == {BUILD}
    project.edit(MODEL, "versions: [numpy]", "versions: [numpy, nothing]")
    missing = project.doit(BUILD)
    assert missing.code == 0
    assert "nothing is not installed in the toolchain other" in missing.out
    checked = project.doit(CHECK)
    assert "{commands.build.model} does not exist" in checked.out


WRONG = {
    "exit 3": ("sh -c 'echo first; echo the reason >&2; exit 3'", "exited with code 3"),
    "killed": ("sh -c 'kill -SEGV $$'", "SIGSEGV"),
    "nothing": ("true", "wrote no output \"model\": model/ does not exist; it wrote nothing"),
    "not executable": ("{inputs.script}", "permission denied"),
}  # fmt: skip


def test_mistakes_of_commands(project: ReadyProject) -> None:
    text = (project.root / MODEL).read_text()
    start, end = text.index("    run: [python"), text.index("    inputs: {script")
    for run, message in WRONG.values():
        write(project, MODEL, f"{text[:start]}    run: {json.dumps(run)}\n{text[end:]}")
        failed = project.doit(BUILD)
        said = failed.out + failed.err
        assert failed.code == 2, said
        assert message in said, said
        assert "build/tiny/command/build/command.log" in said
        assert not (project.root / "build/tiny/command/build/model").exists()
        if "exit 3" in run:
            assert "the reason" in said
    write(project, MODEL, f"{text[:start]}    run: no-such-program\n{text[end:]}")
    missing = project.doit(BUILD)
    assert missing.code == 0
    assert "there is no program no-such-program" in missing.out
    write(project, MODEL, text.replace("cp {inputs.model}/figures.json", "echo"))
    failed = project.doit()
    assert "did not write {figures}" in failed.out + failed.err
    write(project, MODEL, text.replace("difference:", "diference:"))
    failed = project.doit()
    assert 'reports no figure "diference"; did you mean difference?' in failed.out + failed.err


SLEEPING = "sh -c 'mkdir model; setsid sleep 600 & touch started; sleep 600'"


def test_a_time_limit_and_an_interruption_end_all_processes(project: ReadyProject) -> None:
    text = (project.root / MODEL).read_text()
    start, end = text.index("    run: [python"), text.index("    inputs: {script")
    slow = f"{text[:start]}    run: {json.dumps(SLEEPING)}\n{text[end:]}"
    write(project, MODEL, slow.replace("    env:", "    timeout: 0.3s\n    env:"))
    late = project.doit(BUILD)
    assert late.code == 2
    assert "exceeded its limit of 0.3 s" in late.out + late.err, late.out + late.err
    wait_until(lambda: not _sleeping(project), "the processes end with the time limit")
    write(project, MODEL, slow)
    for number in (signal.SIGINT, signal.SIGKILL):
        run = project.start_new(BUILD)
        wait_until(lambda: len(_sleeping(project)) >= 2, "the command runs")
        os.kill(run.pid, number)
        run.communicate()
        wait_until(lambda: not _sleeping(project), f"the processes end after {number.name}")
    write(project, MODEL, text)
    assert project.doit(BUILD).passed == {BUILD}
    assert not list((project.root / "build").rglob("started"))


def _sleeping(project: ReadyProject) -> list[int]:
    """Return the commands of a project: they do not have its mark, but are below its folder."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cwd").readlink().is_relative_to(project.root / "build"):
                found.append(int(folder.name))
        except OSError:
            continue  # it has just ended
    return found


def test_a_folder_of_outputs_comes_from_a_shared_cache(project: ReadyProject) -> None:
    write(
        project,
        "configs/project.yaml",
        f"cache: {{remote: {project.root / 'shared'}, mode: read-write}}\n",
    )
    assert project.doit().code == 0
    for name in ("build", ".buildsys/state.db", ".buildsys/store"):
        path = project.root / name
        path.rename(project.root / f"moved-{path.name}")
    for path in (project.root / ".buildsys").glob("state.db-*"):
        path.unlink()
    restored = project.doit(CHECK)
    assert restored.restored == {BUILD, CHECK}, restored.out + restored.err
    file = project.root / "build/tiny/command/build/model/data/sum.txt"
    assert file.read_text() == "3.0 2 1"


def test_commands_read_outputs_of_a_network(ready: ReadyProject) -> None:
    path = ready.root / "configs/models/a.yaml"
    path.write_text(
        path.read_text() + "commands:\n"
        "  - name: sizes\n"
        "    run: sh -c 'wc -c {inputs.graph} {inputs.engine} {inputs.golden} > {outputs.sizes};"
        " ls inputs/engine'\n"
        "    inputs: {graph: '{simplified}', engine: '{engines.ort}', golden: '{golden.opt}'}\n"
        "    outputs: {sizes: sizes.txt}\n"
    )
    done = ready.doit("command:a:sizes")
    assert done.code == 0, done.out + done.err
    assert "verify:a:ort" in done.passed
    printed = (ready.root / "build/a/command/sizes/sizes.txt").read_text()
    assert [line.split()[1] for line in printed.splitlines()[:3]] == [
        "inputs/graph/model.onnx", "inputs/engine/engine.onnx", "inputs/golden/opt.npz",
    ]  # fmt: skip
    assert "engine.json" in (ready.root / "build/a/command/sizes/command.log").read_text()
