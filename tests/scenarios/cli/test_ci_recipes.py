"""The shell part of every recipe for CI systems, in a real project."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from command_answers import commit, git
from forked_machine import ForkedMachine
from project_folder import REPOSITORY, TIMEOUT_S
from ready_project import ReadyProject

RECIPES = REPOSITORY / "docs/ci"
INSTALLED = "/srv/models/.venv/bin/python"


@pytest.fixture(scope="module")
def forked_doit() -> Iterator[str]:
    """A command like ``buildsys build`` that need not start Python."""
    machine = ForkedMachine("doit")
    yield shlex.join(machine.command)
    machine.close()


@pytest.fixture
def tagged(ready_built: ReadyProject, tmp_path: Path, forked_doit: str) -> ReadyProject:
    """A project with a tagged model, with the programs of a CI machine."""
    manifest = ready_built.root / "configs/models/a.yaml"
    manifest.write_text(manifest.read_text() + "tags: [nightly]\n")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "doit": f'exec {forked_doit} "$@"',
        "gh": f'echo "$@" > {tmp_path}/comment; test -s build/summary.md',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    ready_built.environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    return ready_built


def shell(project: ReadyProject, script: str, program: str = "bash -e", **variables: str) -> str:
    """Run a script as a CI system does; return all that it printed."""
    done = subprocess.run(
        [*program.split(), "-c", script],
        cwd=project.root,
        env={**project.environment, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def recipe(name: str) -> Any:
    return yaml.safe_load((RECIPES / name).read_text())


def github_scripts(name: str) -> list[str]:
    (job,) = recipe(name)["jobs"].values()
    return [step["run"] for step in job["steps"] if "run" in step]


def nightly_scripts(project: ReadyProject, summary: Path) -> Iterator[str]:
    """Run each nightly recipe; yield its name."""
    for script in github_scripts("github-nightly.yml"):
        shell(project, script, GITHUB_STEP_SUMMARY=str(summary))
    yield "github"
    for line in recipe("gitlab-ci.yml")["nightly"]["script"]:
        shell(project, line)
    yield "gitlab"
    lines = (RECIPES / "nightly.cron").read_text().splitlines()
    entries = [line for line in lines if not line.startswith("#")]
    assert [line.partition("=")[0] for line in entries[:-1]] == ["PROJECT", "PYTHON"]
    command = entries[-1].split(maxsplit=5)[5]
    assert "%" not in command, "cron replaces it by a newline"
    printed = shell(project, command, "sh", PROJECT=str(project.root), PYTHON=sys.executable)
    assert printed == "", "cron would send a mail"
    yield "cron"
    unit = (RECIPES / "buildsys-nightly.service").read_text().splitlines()
    (start,) = (line for line in unit if line.startswith("ExecStart="))
    assert INSTALLED in start
    shell(project, start.partition("=")[2].replace(INSTALLED, sys.executable), "sh")
    yield "systemd"


def test_every_nightly_recipe_builds_and_leaves_its_files(
    tagged: ReadyProject, tmp_path: Path
) -> None:
    folder = tagged.root / "build/nightly"
    for name in nightly_scripts(tagged, tmp_path / "summary.md"):
        found = json.loads((folder / "nightly.json").read_text())
        assert (found["outcome"], found["tags"]) == ("passed", ["nightly"]), name
        assert ElementTree.parse(folder / "junit.xml").find(".//testcase") is not None
    assert "# Nightly run of" in (tmp_path / "summary.md").read_text()


def test_a_pull_request_builds_what_changed_since_its_base(
    tagged: ReadyProject, tmp_path: Path
) -> None:
    root = tagged.root
    (root / ".gitignore").write_text("build/\n.buildsys/\n")
    git(root, "init", "-q")
    commit(root, "base")
    base = git(root, "rev-parse", "HEAD").strip()
    build, comment = github_scripts("github-pull-request.yml")
    assert "nothing is selected" in shell(tagged, build, BASE=base)
    tagged.edit("configs/models/a.yaml", "duration: 5ms", "duration: 6ms")
    shell(tagged, build, BASE=base)
    cases = ElementTree.parse(root / "build/junit.xml").findall(".//testcase")
    names = {case.get("name") for case in cases}
    assert {"bench:a:ort", "report:a"} <= names
    summary = (root / "build/summary.md").read_text()
    assert "`bench:a:ort`" in summary
    shell(tagged, comment, PULL_REQUEST="7", GH_TOKEN="x")
    assert shlex.split((tmp_path / "comment").read_text())[:3] == ["pr", "comment", "7"]
    (line,) = recipe("gitlab-ci.yml")["changed"]["script"]
    shell(tagged, line, CI_MERGE_REQUEST_DIFF_BASE_SHA=base)


def test_the_hook_checks_the_files_of_a_commit(tagged: ReadyProject) -> None:
    (hook,) = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    manifest = tagged.root / "configs/models/a.yaml"
    python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = f"{hook['entry']} configs/models/a.yaml"
    assert shell(tagged, command, **python) == ""
    manifest.write_text(manifest.read_text().replace("model:", "modle:"))
    printed = shell(tagged, f"{command} || test $? = 3", **python)
    assert printed.startswith("configs/models/a.yaml:1:1: modle: unknown field")
