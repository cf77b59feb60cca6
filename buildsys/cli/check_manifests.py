"""Check of manifests before a commit: ``python -m buildsys.cli.check_manifests FILE…``.

It runs before every commit, so it starts neither doit nor, for manifests that the cache knows,
pydantic and yaml.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from buildsys.cli.command import PROJECT, find_project
from buildsys.errors import BuildsysError, UsageError
from buildsys.project.load import check_manifests, empty_project
from buildsys.system.printable import printable


def main(names: Sequence[str]) -> int:
    """Print the errors of manifests, by default of the current project."""
    code = 0
    try:
        files = [Path(os.path.abspath(name)) for name in names]  # noqa: PTH100 - keeps links
        projects: dict[Path, list[Path]] = {}
        for path in files or [Path.cwd() / "x"]:
            root = find_project(path.parent)
            if root is None:
                problem = f"{path} is not in a project ({PROJECT})"
                raise UsageError(problem, "name a manifest of a project")
            projects.setdefault(root, []).append(path)
        for root, paths in projects.items():
            project = empty_project(root)
            for path in paths if files else ():
                if not path.is_file() or not path.is_relative_to(project.configs):
                    hint = f"manifests are in {project.configs}"
                    raise UsageError(f"{os.path.relpath(path)} is not a manifest", hint)
            for error in check_manifests(project, paths if files else [project.configs]):
                place = Path(os.path.relpath(root / error.file))
                sys.stderr.write(printable(f"{replace(error, file=place)}\n"))
                code = error.exit_code
    except (BuildsysError, OSError) as error:
        sys.stderr.write(printable(f"ERROR: {error}\n"))
        return UsageError.exit_code
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
