"""Removal of the files of targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from buildsys.cli.project_root import shown_path
from buildsys.cli.session import Session
from buildsys.project.plan import model_of
from buildsys.stages.table import REPORT
from buildsys.system.printable import printable


def remove_files(session: Session, targets: Sequence[str], out: TextIO, *, dry_run: bool) -> None:
    """Remove the files of targets, and the pages of removed reports."""
    for target in targets:
        for path in _remove_target_files(session, target, dry_run=dry_run):
            out.write(printable(f"{target} - removing {shown_path(path)}\n"))
    actions = session.actions
    models = {model_of(target) for target in targets if actions[target].stage == REPORT}
    if models:
        from buildsys.cli.html_pages import remove_pages

        for path in remove_pages(session, models, dry_run=dry_run):
            out.write(printable(f"removing {shown_path(path)}\n"))


def _remove_target_files(session: Session, target: str, *, dry_run: bool) -> Iterator[Path]:
    """Remove the recorded and declared files of a target, and its log.

    Yields files and emptied folders. With ``dry_run`` nothing is removed, and only files are
    yielded.
    """
    build = session.project.build
    declared = {output.path for output in session.actions[target].outputs.values()}
    paths = {build / path for path in declared | session.executor.ledger.owned(target)}
    paths.add(session.log(target))
    files = sorted(path for path in paths if path.is_file() or path.is_symlink())
    for path in files:
        if not dry_run:
            path.unlink(missing_ok=True)
        yield path
    for folder in sorted({path.parent for path in files}, reverse=True) if not dry_run else ():
        while folder != build and build in folder.parents:
            try:
                folder.rmdir()
            except OSError:  # not empty, or already removed
                break
            yield folder
            folder = folder.parent
