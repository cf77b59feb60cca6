"""Calls of git, and the state of a checkout."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

# set when a git hook calls us
_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


class Checkout(NamedTuple):
    """The state of the project's git checkout."""

    project: str = ""  # remote, and folder in the repository
    revision: str = ""
    dirty: bool | None = None
    run: str = ""  # on several machines


def commit_query(revision: str) -> tuple[str, ...]:
    """Return the arguments of git that print the commit of a revision, and fail without one."""
    return "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"


def run_git(
    folder: Path, *arguments: str, index: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run git in a folder. Raises: OSError: there is no git."""
    variables = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
    environment = {**variables, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    if index is not None:
        environment["GIT_INDEX_FILE"] = str(index)
    # a sparse work tree would leave files out
    command = ["git", "-c", "core.sparseCheckout=false", "-C", str(folder), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=False)
