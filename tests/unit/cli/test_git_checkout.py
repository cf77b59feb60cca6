"""State of a git checkout, as the history records it."""

import subprocess
from pathlib import Path

import pytest

from buildsys.cli.git_revision import _remote_name, read_checkout
from buildsys.errors import UsageError
from buildsys.system.git import Checkout


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_a_checkout_is_named_by_remote_folder_and_revision(tmp_path: Path) -> None:
    project = tmp_path / "vision"
    folders = project / "build", project / ".buildsys"
    for folder in folders:
        folder.mkdir(parents=True)
    with pytest.raises(UsageError):
        read_checkout(project, folders)
    git(tmp_path, "init", "-q")
    (project / "a").write_text("1")
    assert read_checkout(project, folders) == Checkout(dirty=True)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "a")
    git(tmp_path, "remote", "add", "origin", "git@host:acme/models.git")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert read_checkout(project, folders) == Checkout("host/acme/models//vision", commit, False)
    assert read_checkout(tmp_path, folders) == Checkout("host/acme/models", commit, False)
    (project / "build" / "output").write_text("x")
    assert read_checkout(project, folders).dirty is False
    (tmp_path / "library.py").write_text("x")  # outside of the project, in its repository
    assert read_checkout(project, folders).dirty is True


@pytest.mark.parametrize(
    "url",
    [
        "git@host:acme/models.git",
        "https://host/acme/models",
        "https://user:secret@host/acme/models.git/",
        "ssh://git@host/acme/models.git",
    ],
)
def test_all_urls_of_a_remote_have_one_name(url: str) -> None:
    assert _remote_name(url) == "host/acme/models"
