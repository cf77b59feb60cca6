"""Targets built by an executor: other processes that share nothing but a store."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from command_answers import answer, texts
from forked_machine import ForkedMachine
from project_folder import finish, wait_until
from ready_project import VALUES, ReadyProject, contents, processes_marked, targets

from buildsys.history.database import History
from buildsys.store.signatures import generate_key

MANIFEST = "configs/models/a.yaml"
LAB = ("engine:a:lab", "bench:a:lab")


class Cluster:
    """A project whose engine ``lab`` needs a label that only its executor offers."""

    def __init__(
        self, project: ReadyProject, folder: Path, elsewhere: Path, machine: ForkedMachine
    ) -> None:
        self.project, self.store, self.elsewhere = project, folder / "store", elsewhere
        self.machine = machine
        self.store.mkdir()
        project.edit(MANIFEST, "name: ort}]", "name: ort}, {backend: onnxruntime, name: lab, "
                     "needs: {labels: [lab-1]}}]")  # fmt: skip
        self.configure()

    def configure(
        self,
        *variables: str,
        first: str = "",
        more: str = "",
        offers: str = "labels: [lab-1]",
        forked: bool = True,
    ) -> None:
        """Write the executor; ``variables`` are of its jobs."""
        given = [f"TMPDIR={self.elsewhere}", "BUILDSYS_LABELS=lab-1", *variables]
        program = self.machine.command if forked else [sys.executable, "-m", "buildsys"]
        command = json.dumps(["env", *given, *program])
        (self.project.root / "configs/project.yaml").write_text(
            f"cache: {{remote: {self.store}, mode: read-write}}\n"
            f"executors:\n"
            f"  other: {{kind: process, command: {command}, offers: {{{offers}}}{more}}}\n{first}"
        )

    def records(self) -> list[str]:
        """Return the targets whose records are in the store."""
        found = self.store.glob("actions/*/*.json")
        return sorted(json.loads(path.read_bytes().split(b"\n")[1])["target"] for path in found)


@pytest.fixture
def cluster(
    ready: ReadyProject, tmp_path: Path, elsewhere: Path, machine: ForkedMachine
) -> Cluster:
    return Cluster(ready, tmp_path, elsewhere, machine)


def test_what_needs_an_executor_runs_there(cluster: Cluster) -> None:
    project = cluster.project
    places = answer(project, "plan", "--where", *LAB)["targets"]
    found = {one["target"]: (one["executor"], one["why"]) for one in places}
    assert found["engine:a:lab"] == ("other", "this machine lacks the label lab-1")
    assert found["export:a"] == ("", "it needs nothing")
    built = project.doit(*LAB)
    assert built.code == 0, built.out + built.err
    assert built.passed >= set(LAB)
    assert f"on {os.uname().nodename}" in built.out
    log = project.root / "build/a/engine/lab/engine.log"
    assert log.read_text().startswith(f"# engine:a:lab ran on {os.uname().nodename}\n")
    assert "everything is up to date" in project.doit(*LAB).out
    assert list(cluster.store.glob("answers/*")) == []
    assert "bench:a:lab" not in cluster.records()  # figures are not shared with anybody
    history = History(project.root / ".buildsys/history.db")
    (run,) = history.builds(target="bench:a:lab")
    assert run.machine == os.uname().nodename
    timed = json.loads((project.root / "build/a/bench/lab.json").read_text())
    assert timed["load"]["exclusive"] == ["cpu"]
    project.environment["BUILDSYS_LABELS"] = "lab-1"  # now this machine has it as well
    assert answer(project, "plan", "--where", *LAB)["targets"] == []  # with the same libraries


def test_every_stage_can_run_elsewhere(cluster: Cluster) -> None:
    project = cluster.project
    project.edit(MANIFEST, ", {backend: onnxruntime, name: lab, needs: {labels: [lab-1]}}", "")
    cluster.configure(first="  local: {kind: local}\n")
    built = project.doit("build:a")
    assert built.code == 0, built.out + built.err
    assert built.passed == targets("a")
    assert built.out.count(f"on {os.uname().nodename}\n") >= len(targets("a")) - 1
    assert set(cluster.records()) == targets("a") - {"bench:a:ort"}
    (project.root / "configs/project.yaml").unlink()  # the clean build is one of this machine
    found = contents(project.root / "build")
    assert project.clean_contents() == found


def test_another_machine_is_noticed(cluster: Cluster) -> None:
    project = cluster.project
    assert project.doit(*LAB[:1]).code == 0
    cluster.configure("ORT_LOGGING=1", offers="labels: [lab-1], memory: 1GiB")  # asked again
    reasons = texts(project, "explain", *LAB[:1])[LAB[0]]
    assert reasons == ["the libraries and devices of other are not known yet"]
    again = project.doit(*LAB[:1])
    assert again.code == 0, again.err
    project.edit("configs/project.yaml", '["env"', '["timeout"')  # does not run buildsys
    broken = project.doit(*LAB[:1])
    assert broken.code == 2, broken.out + broken.err
    assert "without an answer" in broken.out


def test_a_machine_unlike_the_others_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    project, changed = cluster.project, tmp_path / "changed"
    script = tmp_path / "buildsys.sh"
    script.write_text(
        f"#!/bin/sh\n[ -e {changed} ] && export ORT_LOGGING=1\n"
        f"export TMPDIR={cluster.elsewhere} BUILDSYS_LABELS=lab-1\n"
        f'exec {shlex.join(cluster.machine.command)} "$@"'
    )
    script.chmod(0o755)
    settings = project.root / "configs/project.yaml"
    cluster.configure()
    head = settings.read_text().split("  other:")[0]
    settings.write_text(
        f"{head}  other: {{kind: process, command: [{script}], offers: {{labels: [lab-1]}}}}\n"
    )
    assert project.doit(*LAB[:1]).code == 0
    changed.touch()
    project.edit(MANIFEST, "name: lab,", "name: lab, graph_optimization_level: basic,")
    refused = project.doit(*LAB[:1])
    assert refused.code == 2
    assert "would build something else than requested" in refused.out + refused.err
    assert "env ORT_LOGGING" in refused.out + refused.err
    assert project.doit(*LAB[:1]).code == 0  # the machines were asked again


def test_a_killed_job_is_tried_again(cluster: Cluster) -> None:
    project = cluster.project
    cluster.configure(first="  local: {kind: local}\n", forked=False)
    (project.root / VALUES).write_text(waiting_values(project.root))
    project.hold()
    run = project.start("reference:a")
    wait_until(lambda: project.is_held and jobs(cluster), "the stage runs")
    (job,) = jobs(cluster)
    os.kill(job, signal.SIGKILL)
    (project.root / "held").unlink()
    wait_until(lambda: project.is_held, "the stage runs again")
    project.let_go()
    done = finish(run)
    assert done.code == 0, done.out + done.err
    assert done.passed == {"reference:a"}
    assert jobs(cluster) == []


def test_an_interrupted_run_ends_its_jobs(cluster: Cluster) -> None:
    project = cluster.project
    cluster.configure(first="  local: {kind: local}\n", forked=False)
    (project.root / VALUES).write_text(waiting_values(project.root))
    project.hold()
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        run = project.start("reference:a")
        wait_until(lambda: project.is_held and jobs(cluster), "the stage runs")
        os.kill(run.pid, number)
        assert finish(run).code == code
        wait_until(lambda: not jobs(cluster), "the job ends with its run")
        (project.root / "held").unlink()
    project.let_go()
    assert project.doit("reference:a").code == 0


def test_a_gate_compares_engines_there(cluster: Cluster) -> None:
    project = cluster.project
    project.edit(MANIFEST, "name: lab,", "name: lab, gates: {size: {tolerance: 50%}},")
    first = project.doit("gate:a:lab")
    assert first.code == 0, first.out
    assert "no earlier build" in (project.root / "build/a/gate/lab.json").read_text()
    project.write_network(1)
    second = project.doit("gate:a:lab")
    assert second.code == 0, second.out
    result = json.loads((project.root / "build/a/gate/lab.json").read_text())
    assert result["baseline"]["engine"] != result["engine"], result


def test_failures_are_those_of_a_run_here(cluster: Cluster) -> None:
    project = cluster.project
    project.edit(MANIFEST, "name: lab,", "name: lab, tolerance: {rtol: 1e-30, atol: 0},")
    failed = project.doit("verify:a:lab")
    assert failed.code == 1, failed.out + failed.err
    result = json.loads((project.root / "build/a/verify/lab.json").read_text())
    assert result["status"] == "failed"
    assert "allowed 1e-30" in failed.err + failed.out


def test_what_nothing_can_run_is_an_error_at_once(cluster: Cluster) -> None:
    project = cluster.project
    cluster.configure(offers="labels: [lab-2]")
    refused = project.doit("build:a")
    assert refused.code == 3
    assert (
        "nothing can run engine:a:lab: this machine lacks the label lab-1;"
        " other lacks the label lab-1; correct its `needs`" in refused.err
    )
    assert not (project.root / "build/a/export").exists()
    nowhere = project.doit("plan", "--where", *LAB[:1])
    assert nowhere.code == 3
    assert "nowhere" in nowhere.out


def test_executors_need_a_store_that_can_be_used(cluster: Cluster) -> None:
    project = cluster.project
    settings = project.root / "configs/project.yaml"
    text = settings.read_text()
    settings.write_text(text.partition("\n")[2])
    without = project.doit(*LAB[:1])
    assert without.code == 2
    assert "executors need a shared cache" in without.out + without.err
    settings.write_text(text.replace(str(cluster.store), f"{cluster.store}/missing"))
    missing = project.doit(*LAB[:1])
    assert missing.code != 0
    assert "there is no such folder" in missing.out + missing.err
    settings.write_text(text)
    assert project.doit(*LAB[:1]).code == 0


def test_only_signed_answers_are_taken_with_trusted_keys(cluster: Cluster, tmp_path: Path) -> None:
    project = cluster.project
    ours, theirs = tmp_path / "ours.pem", tmp_path / "theirs.pem"
    trusted = [generate_key(ours), generate_key(theirs)]
    settings = project.root / "configs/project.yaml"

    def trust(*keys: str) -> None:
        settings.write_text(
            settings.read_text().replace(
                "mode: read-write", f"mode: read-write, trusted_keys: {json.dumps(keys)}"
            )
        )

    project.environment["BUILDSYS_SIGNING_KEY"] = str(ours)
    cluster.configure(f"BUILDSYS_SIGNING_KEY={theirs}")
    trust(trusted[0])
    refused = project.doit(*LAB[:1])
    assert refused.code == 2
    assert "is not signed by a trusted key" in refused.out + refused.err
    cluster.configure(f"BUILDSYS_SIGNING_KEY={theirs}")
    trust(*trusted)
    assert project.doit(*LAB[:1]).code == 0


def waiting_values(root: Path) -> str:
    """Return the project's function for inputs, which waits for files of the project."""
    text = (root / VALUES).read_text()
    return text.replace('"hold"', repr(str(root / "hold"))).replace(
        '"held"', repr(str(root / "held"))
    )


def jobs(cluster: Cluster) -> list[int]:
    """Return the processes of run-action."""
    found = processes_marked(cluster.project.mark).items()
    return [pid for pid, command in found if "run-action" in command and "-m buildsys" in command]
