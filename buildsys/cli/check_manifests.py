"""Check of manifests before a commit: ``python -m buildsys.cli.check_manifests FILE…``.

It runs before every commit, so it starts neither doit nor, for manifests that the cache knows,
pydantic and yaml.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from buildsys.errors import BuildsysError, UsageError
from buildsys.project.load import check_manifests, empty_project
from buildsys.system.printable import printable


def main(names: Sequence[str]) -> int:
    """Print the errors of manifests, by default of the current project."""
    try:
        projects: dict[Path, list[Path]] = {} if names else {_project_of(Path.cwd() / "x"): []}
        for name in names:
            file = Path(os.path.abspath(name))  # noqa: PTH100 - resolve() would change the paths
            if not file.is_file():
                raise UsageError(f"there is no file {name}", "check the path")
            projects.setdefault(_project_of(file), []).append(file)
        code = 0
        for root, files in projects.items():
            project = empty_project(root)
            for file in files:
                if not file.is_relative_to(project.configs):
                    hint = f"manifests are in {project.configs}"
                    raise UsageError(f"{os.path.relpath(file)} is not a manifest", hint)
            # without a file all manifests are checked
            for error in check_manifests(project, files or [project.configs]):
                file = Path(os.path.relpath(root / error.file))
                sys.stderr.write(printable(f"{replace(error, file=file)}\n"))
                code = error.exit_code
    except (BuildsysError, OSError) as error:
        sys.stderr.write(printable(f"ERROR: {error}\n"))
        return UsageError.exit_code
    return code


def _project_of(file: Path) -> Path:
    """Return the folder of the project of a file.

    Raises: UsageError: there is none.
    """
    project = next((folder for folder in file.parents if (folder / "dodo.py").is_file()), None)
    if project is None:
        name = os.path.relpath(file.parent)
        raise UsageError(
            f"{name} is not in a project (a folder with dodo.py and configs/)",
            "name a manifest of a project",
        )
    return project


if __name__ == "__main__":
    # a quarter of the time after an edit: collections during the imports, a search for plugins of
    # pydantic in all packages, and the teardown of the interpreter
    gc.disable()
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)
