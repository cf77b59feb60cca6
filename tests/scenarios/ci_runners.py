"""What runners of CI systems do with a recipe, one shell step after another.

Actions of GitHub are replaced by their effect: a clone, a copy of the cache, a list of artifacts.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from project_folder import TIMEOUT_S

PYTHON3 = """\
#!/bin/sh
{python} "$@" || exit
[ "$2" != venv ] || printf '{packages}' > "$(echo "$3"/lib/python*/site-packages)/machine.pth"
"""


def machine(folder: Path, environment: Mapping[str, str], **programs: str) -> dict[str, str]:
    """Return the environment of a machine with Python, git and the programs, without a network.

    Its virtual environments see the packages of this one: torch alone would be a download.
    """
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    python = getattr(sys, "_base_executable", sys.executable)
    programs["python3"] = PYTHON3.format(python=python, packages="\\n".join(packages) + "\\n")
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {**environment, **pip, "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin"}


@dataclass
class Runner:
    """A machine with a clone of a repository; its virtual environment outlives a run."""

    origin: Path
    work: Path
    environment: dict[str, str]
    cache: Path
    printed: str = ""

    def check_out(self, revision: str = "origin/main") -> None:
        if not self.work.exists():
            self.shell(f"git clone -q {self.origin} {self.work}", self.origin)
        self.shell(f"git fetch -q && git reset -q --hard {revision} && git clean -qffdx -e .venv")

    def shell(self, script: str, folder: Path | None = None, shell: str = "bash -e") -> int:
        """Run a script, append its output to ``printed`` and return its exit code."""
        done = subprocess.run(
            [*shell.split(), "-c", script],
            cwd=folder or self.work,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        self.printed += done.stdout
        return done.returncode

    def restore(self, paths: list[str]) -> None:
        for path in paths:
            if (self.cache / path).exists():
                shutil.copytree(self.cache / path, self.work / path, dirs_exist_ok=True)

    def save(self, paths: list[str]) -> None:
        shutil.rmtree(self.cache, ignore_errors=True)
        for path in paths:
            # an archive has no sockets
            ignored = shutil.ignore_patterns("*.sock")
            shutil.copytree(self.work / path, self.cache / path, ignore=ignored)

    def has(self, patterns: list[str]) -> bool:
        """Whether the artifacts have a file; runners only warn about single patterns."""
        return any(True for pattern in patterns for _ in self.work.glob(pattern.strip("/")))


def run_github(runner: Runner, recipe: Path, context: Mapping[str, str]) -> int:
    """Run the steps of the only job of a workflow; return its exit code.

    ``context`` has the values of expressions, such as ``github.run_id``.
    """
    (job,) = yaml.safe_load(recipe.read_text())["jobs"].values()
    code = 0
    for step in job["steps"]:
        if not _condition(step.get("if", ""), context, code):
            continue
        inputs = {name: _expand(str(text), context) for name, text in step.get("with", {}).items()}
        match step.get("uses", "").partition("@")[0]:
            case "":
                runner.environment |= {
                    name: _expand(text, context) for name, text in step.get("env", {}).items()
                }
                code = runner.shell(_expand(step["run"], context)) or code
                _extend_path(runner.environment)
            case "actions/checkout":
                assert ("--since" in recipe.read_text()) == (inputs.get("fetch-depth") == "0")
                runner.check_out(context["github.sha"])
            case "actions/setup-python":
                assert (runner.work / "requirements.txt").exists()  # the key of the cache of pip
            case "actions/cache/restore":
                runner.restore(inputs["path"].split())
            case "actions/cache/save":
                runner.save(inputs["path"].split())
            case "actions/upload-artifact":
                assert runner.has(inputs["path"].split())
            case action:
                raise AssertionError(f"unknown action {action}")
    return code


def _condition(text: str, context: Mapping[str, str], code: int) -> bool:
    """Evaluate the ``if`` of a step: ``always()`` and comparisons, joined by ``&&``."""
    terms = [term.strip() for term in text.split("&&") if term.strip()]
    compared = [term.split(" == ") for term in terms if term != "always()"]
    return (code == 0 or "always()" in terms) and all(
        context[left] == context[right] for left, right in compared
    )


def _expand(text: str, context: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: context[match[1]], text)


def _extend_path(environment: dict[str, str]) -> None:
    """Put the folders in the file ``GITHUB_PATH`` before others."""
    added = Path(environment["GITHUB_PATH"])
    folders = added.read_text().split() if added.exists() else []
    added.unlink(missing_ok=True)
    environment["PATH"] = os.pathsep.join([*folders, environment["PATH"]])


def run_gitlab(runner: Runner, recipe: Path, name: str, variables: Mapping[str, str]) -> int:
    """Run a job of a pipeline; return its exit code."""
    pipeline: dict[str, Any] = yaml.safe_load(recipe.read_text())
    job = {**pipeline["default"], **pipeline[name]}
    runner.environment |= {**variables, **{k: str(v) for k, v in pipeline["variables"].items()}}
    runner.check_out()
    runner.restore(job["cache"]["paths"])
    code = runner.shell("\n".join([*job["before_script"], *job["script"]]))
    runner.shell("\n".join(job.get("after_script", [])))
    runner.save(job["cache"]["paths"])
    artifacts = job["artifacts"]
    assert runner.has(artifacts["paths"])
    assert runner.has([artifacts["reports"]["junit"]])
    return code
