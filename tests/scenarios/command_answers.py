"""JSON answers of commands on a project, and a git repository around it."""

import json
import subprocess
from pathlib import Path
from typing import Any

from project_folder import ProjectFolder


def answer(project: ProjectFolder, *arguments: str) -> Any:
    """Return the one JSON document that a command prints."""
    done = project.doit(*arguments, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


def texts(project: ProjectFolder, *arguments: str) -> dict[str, list[str]]:
    """Return target -> its reasons in words."""
    found = answer(project, *arguments)["targets"]
    return {one["target"]: [reason["text"] for reason in one["reasons"]] for one in found}


def states(project: ProjectFolder, *arguments: str) -> dict[str, str]:
    return {one["target"]: one["state"] for one in answer(project, *arguments)["targets"]}


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout


def commit(root: Path, message: str) -> None:
    (root / ".gitignore").write_text("build/\n.buildsys/\n__pycache__/\n*.pth\n/data/\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)
