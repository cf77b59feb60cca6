"""``buildsys``, or ``python -m buildsys``: doit from any folder of a project.

doit itself reads pyproject.toml and dodo.py of the current folder only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from doit.doit_cmd import DoitMain


def main() -> None:
    """Run doit in the project of the current folder."""
    here = Path.cwd()
    root = next((folder for folder in (here, *here.parents) if is_project(folder)), None)
    if root is None:
        sys.stderr.write(
            f"{here} is not in a project (a folder with dodo.py and configs/), nor is any folder"
            " above it; change to a project first\n"
        )
        sys.exit(3)
    if root != here:
        os.chdir(root)
        sys.stderr.write(f"in {root}\n")
    sys.exit(DoitMain().run(sys.argv[1:]))


def is_project(folder: Path) -> bool:
    """Check for a dodo file and manifests."""
    return (folder / "dodo.py").is_file() and (folder / "configs").is_dir()
