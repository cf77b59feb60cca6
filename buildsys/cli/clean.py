"""What ``doit clean`` removes: everything that a target has put into the build folder, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from buildsys.cli.session import Session


def remove_target_files(session: Session, target: str, *, dry_run: bool) -> Iterator[Path]:
    """Remove a target's outputs, what it left beside them and its log; yield each file and emptied folder.

    With ``dry_run`` nothing is removed, and only files are yielded.
    """
    files = session.files(target)
    for path in files:
        if not dry_run:
            path.unlink(missing_ok=True)
        yield path
    if not dry_run:
        for folder in sorted({path.parent for path in files}, reverse=True):
            yield from _remove_empty(folder, session.project.build)


def _remove_empty(folder: Path, build: Path) -> Iterator[Path]:
    while folder != build and build in folder.parents:
        try:
            folder.rmdir()
        except OSError:  # not empty, or gone already
            return
        yield folder
        folder = folder.parent
