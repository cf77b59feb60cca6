"""Every recipe for CI systems, from a clone to the published table, with real commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs
from xml.etree import ElementTree

import pytest
import yaml
from ci_runners import Runner, machine, run_github, run_gitlab
from command_answers import git
from project_folder import REPOSITORY
from ready_project import ReadyProject

RECIPES = REPOSITORY / "docs/ci"
GH = """\
#!/bin/sh
[ "$1 $2 $4 $5 $6" = "pr comment --edit-last --create-if-none --body-file" ] || exit 64
cp "$7" "$COMMENTS/$3"
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this repository, from a copy, as setuptools leaves files in the folder."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "buildsys", copy / "buildsys", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, copy)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True)
    (file,) = folder.glob("buildsys-*.whl")
    return file


@pytest.fixture(scope="module")
def runner(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory, runtime_folder: Path
) -> Iterator[Runner]:
    """A machine without buildsys, and a repository with a tagged model and a recipe's needs."""
    folder = tmp_path_factory.mktemp("ci")
    project = ReadyProject(folder / "origin", runtime_folder)
    project.root.mkdir()
    project.create()
    manifest = project.add_model("a")
    manifest.write_text(manifest.read_text() + "tags: [nightly]\n")
    (project.root / "requirements.txt").write_text(f"buildsys @ {wheel.as_uri()}\n")
    (project.root / ".gitignore").write_text("/build/\n/.buildsys/\n__pycache__/\n")
    git(project.root, "init", "-q", "-b", "main")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-qm", "base")
    environment = machine(folder / "bin", project.environment, gh=GH)
    environment |= {"COMMENTS": str(folder), "GITHUB_PATH": str(folder / "path")}
    environment["GITHUB_STEP_SUMMARY"] = str(folder / "summary.md")
    del environment["PYTHONPATH"]
    yield Runner(project.root, folder / "work", environment, folder / "cache")
    project.end()


@pytest.fixture(autouse=True)
def new_job(runner: Runner) -> Iterator[None]:
    """Give each test the environment of a new job."""
    environment = dict(runner.environment)
    yield
    runner.environment = environment


def nightly_states(runner: Runner) -> set[str]:
    """Return the states of all targets after a nightly run that passed."""
    result = json.loads((runner.work / "build/nightly/nightly.json").read_text())
    assert (result["outcome"], result["tags"]) == ("passed", ["nightly"])
    return {target["status"] for target in result["targets"]}


def test_github_builds_every_night_and_keeps_the_store(runner: Runner) -> None:
    recipe, summary = RECIPES / "github-nightly.yml", Path(runner.environment["COMMENTS"])
    context = {"github.run_id": "1", "github.run_attempt": "1", "github.sha": "origin/main"}
    assert run_github(runner, recipe, context) == 0, runner.printed
    assert (runner.work / ".venv/bin/buildsys").exists()
    assert nightly_states(runner) <= {"passed", "noisy"}
    assert run_github(runner, recipe, context) == 0, runner.printed
    assert nightly_states(runner) == {"restored"}
    assert (summary / "summary.md").read_text().count("# Nightly run of") == 2


def pull_request(runner: Runner, added: str, author: str) -> dict[str, str]:
    """Commit lines of the manifest on a branch; return the context of its workflow."""
    base = git(runner.origin, "rev-parse", "main").strip()
    git(runner.origin, "checkout", "-q", "-B", "change", "main")
    with (runner.origin / "configs/models/a.yaml").open("a") as manifest:
        manifest.write(added)
    git(runner.origin, "commit", "-qam", "change")
    context = {
        "github.run_id": "2",
        "github.run_attempt": "1",
        "github.repository": "us/models",
        "github.sha": git(runner.origin, "rev-parse", "change").strip(),
        "github.token": "secret",
        "github.event.pull_request.base.sha": base,
        "github.event.pull_request.head.repo.full_name": f"{author}/models",
        "github.event.pull_request.number": "7",
    }
    git(runner.origin, "checkout", "-q", "main")
    return context


def test_github_builds_what_a_pull_request_changes_and_comments_the_table(runner: Runner) -> None:
    recipe, comment = RECIPES / "github-pull-request.yml", Path(runner.environment["COMMENTS"], "7")
    context = pull_request(runner, "# a comment changes nothing\n", author="them")
    assert run_github(runner, recipe, context) == 0, runner.printed
    assert "no targets" in (runner.work / "build/summary.md").read_text()
    assert not comment.exists()
    context = pull_request(runner, "gates: {size: {limit: 1kB}}\n", author="us")
    assert run_github(runner, recipe, context) == 1, runner.printed
    cases = ElementTree.parse(runner.work / "build/junit.xml").findall(".//testcase[failure]")
    assert {case.get("name") for case in cases} == {"gate:a:ort"}
    assert "1 failed, 1 not run" in comment.read_text()


class Notes(BaseHTTPRequestHandler):
    """The notes of a merge request in GitLab's API."""

    received: list[tuple[str, str, str]]

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())["body"][0]
        self.received.append((self.path, self.headers["PRIVATE-TOKEN"], body))
        self.send_response(201)
        self.end_headers()

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Print nothing."""


@pytest.fixture
def gitlab() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the address of a server, and the notes that it receives."""
    Notes.received = []
    server = HTTPServer(("127.0.0.1", 0), Notes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/api/v4", Notes.received
    server.shutdown()
    server.server_close()


@contextmanager
def pushed(runner: Runner, added: str) -> Iterator[str]:
    """Commit lines of the manifest for a while; yield the revision before."""
    base = git(runner.origin, "rev-parse", "main").strip()
    with (runner.origin / "configs/models/a.yaml").open("a") as manifest:
        manifest.write(added)
    git(runner.origin, "commit", "-qam", "change")
    yield base
    git(runner.origin, "revert", "-n", "HEAD")
    git(runner.origin, "commit", "-qm", "revert")


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_gitlab_builds_every_night_and_comments_merge_requests(
    runner: Runner, gitlab: tuple[str, list[tuple[str, str, str]]]
) -> None:
    recipe, (url, notes) = RECIPES / "gitlab-ci.yml", gitlab
    assert run_gitlab(runner, recipe, "nightly", {}) == 0, runner.printed
    nightly_states(runner)
    variables = {
        "CI_API_V4_URL": url,
        "CI_PROJECT_ID": "3",
        "CI_MERGE_REQUEST_IID": "7",
        "COMMENT_TOKEN": "secret",
    }
    with pushed(runner, "gates: {size: {limit: 1MB}}\n") as base:
        variables["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = base
        assert run_gitlab(runner, recipe, "changed", variables) == 0, runner.printed
    ((path, token, body),) = notes
    assert (path, token) == ("/api/v4/projects/3/merge_requests/7/notes", "secret")
    assert body == (runner.work / "build/summary.md").read_text()
    assert "2 passed, 7 restored" in body


def test_cron_builds_what_was_pushed_and_mails_failures_only(runner: Runner) -> None:
    runner.check_out()
    *_, project, entry = (RECIPES / "nightly.cron").read_text().splitlines()
    command = entry.split(maxsplit=5)[5].replace("$PROJECT", str(runner.work))
    assert project == "PROJECT=/srv/models"
    assert "%" not in command, "cron replaces it by a newline"
    runner.printed = ""
    assert (runner.shell(command, shell="sh"), runner.printed) == (0, "")
    nightly_states(runner)
    with pushed(runner, "gates: {size: {limit: 1kB}}\n"):
        runner.shell(command, shell="sh")
    assert re.search(r"^failed +gate:a:ort", runner.printed, re.MULTILINE)


def test_systemd_builds_what_was_pushed(runner: Runner, tmp_path: Path) -> None:
    runner.check_out()
    names = ("buildsys-nightly.service", "buildsys-nightly.timer")
    for name in names:
        text = (RECIPES / name).read_text().replace("/srv/models", str(runner.work))
        (tmp_path / name).write_text(text)
    unit = (tmp_path / names[0]).read_text()
    commands = re.findall(r"^ExecStart(?:Pre)?=(.*)$", unit, re.MULTILINE)
    for command in commands:
        text = command.replace("/usr/bin/python3", "python3")  # this machine's, see `machine`
        assert runner.shell(text, shell="sh") == 0, runner.printed
    nightly_states(runner)
    if shutil.which("systemd-analyze"):
        verify = [
            "systemd-analyze",
            "verify",
            "--man=no",
            *(str(tmp_path / name) for name in names),
        ]
        done = subprocess.run(verify, capture_output=True, text=True)
        assert (done.returncode, str(tmp_path) in done.stderr) == (0, False), done.stderr


def test_the_hook_checks_the_files_of_a_commit(ready_built: ReadyProject) -> None:
    (hook,) = yaml.safe_load((REPOSITORY / ".pre-commit-hooks.yaml").read_text())
    manifest = ready_built.root / "configs/models/a.yaml"
    environment = {**ready_built.environment}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    runner = Runner(ready_built.root, ready_built.root, environment, ready_built.root)
    command = f"{hook['entry']} configs/models/a.yaml"
    assert (runner.shell(command), runner.printed) == (0, "")
    manifest.write_text(manifest.read_text().replace("model:", "modle:"))
    assert runner.shell(command) == 3
    assert runner.printed.startswith("configs/models/a.yaml:1:1: modle: unknown field")
