"""Trials of changes to a manifest after a failed build, with real exporters."""

import json
import os
import signal

import pytest
from project_folder import ProjectFolder, finish, wait_until

from buildsys.cli.session import BuildSession
from buildsys.cli.trials import describe_trials, find_verified

VERIFIED = "export: {exporter: dynamo, opset: 18} (tried: it leads to a verified engine)"
FAILED = "the torchscript exporter cannot translate the operator aten::asinh to opset 17"


def test_a_trial_changes_only_the_text_of_the_failure(project: ProjectFolder) -> None:
    model = project.root / "plugins/models/small.py"
    model.write_text(model.read_text().replace("return self.layer(x)", "return x.asinh()"))
    project.add_model("a")
    project.edit("configs/models/a.yaml", "[batch, 3]", "[batch, 4]")
    project.environment["BUILDSYS_TRIALS"] = "1"
    trials = project.root / "build/.tmp"

    killed = project.start_new("build", "export:a")
    wait_until(lambda: [*trials.glob("trial@*/build/a/reference/*")], "no trial was started")
    os.killpg(killed.pid, signal.SIGKILL)
    finish(killed)

    ran = project.doit("export:a")  # of doit itself
    assert ran.code == 2
    assert ran.out.count(VERIFIED) == 2, "at the failure and at the end"
    assert project.files() == {"a/export/export.log"}
    assert not [*trials.iterdir()]
    explained = project.buildsys("explain", "export:a").out
    assert FAILED in explained
    assert VERIFIED in explained
    runs = json.loads(project.buildsys("history", "a", "--json").out)
    assert [build["status"] for build in runs["builds"]] == ["error"]

    again = project.buildsys("build", "export:a", "--no-trials", "--results", "results.json")
    assert "not tried: export: {exporter: dynamo, opset: 18}, export: {exporter" in again.out
    (target,) = json.loads((project.root / "results.json").read_text())["targets"]
    assert "not tried: export: {exporter: dynamo, opset: 18}" in target["reason"]

    project.edit("configs/models/a.yaml", "{opset: 17}", "{exporter: dynamo, opset: 18}")
    built = project.buildsys("build", "verify:a:ort")
    assert built.restored == built.ran > {"export:a", "reference:a", "verify:a:ort"}


def test_new_writes_the_first_export_that_verifies(project: ProjectFolder) -> None:
    model = project.root / "plugins/models/small.py"
    die = "torch.compiler.is_exporting() and __import__('os').kill(0, 9); return self.layer(x)"
    model.write_text(model.read_text().replace("return self.layer(x)", die))
    project.environment["BUILDSYS_TRIALS"] = "1"
    source = ("--from", "plugins/models/small.py:Linear", "--input", "x=batch,4")
    assert project.buildsys("new", "a", *source).code == 0
    end = "killed by signal 9 (SIGKILL), probably because memory ran out"
    dead = f"was not tried (the worker of export:a was {end})"
    comment = f"it leads to a verified engine; export: {{exporter: dynamo, opset: 18}} {dead}"
    export = f"export: {{exporter: torchscript, opset: 17}}  # {comment}"
    assert export in (project.root / "configs/models/a.yaml").read_text().splitlines()
    assert not project.files()
    built = project.buildsys("build", "a", "--no-bench")
    assert built.restored == built.ran > {"export:a", "verify:a:ort-cpu"}


@pytest.mark.parametrize(
    ("exit_code", "reason"), [(0, "all trials of a model take at most 0 s"), (130, "interrupted")]
)
def test_trials_without_time_are_not_tried(
    project: ProjectFolder, exit_code: int, reason: str
) -> None:
    project.add_model("a")
    session = BuildSession.load(project.root)
    session.interrupted, session.has_trials = exit_code, False
    change = "export: {opset: 18}"
    assert find_verified(session, "a", [change], limit_s=0) == {change: reason}
    session.tried[change, "verify:a:ort"] = False  # in a trial for an earlier failure
    later = describe_trials(session, session.actions["validate:a"], "", [change], project.root)
    assert later == f"tried {change}: it does not lead to a verified engine"
    session.close()
