"""Outputs of a command, copied from its working folder.

The program decides what is in this folder, and may still be changing it. Everything is opened
beneath descriptors of the folders that existed before the program started.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import PurePosixPath

from buildsys.errors import StageError, joined
from buildsys.manifest.command_templates import LISTING, RESERVED
from buildsys.report.formatting import first_names
from buildsys.report.results.command import CommandOutput
from buildsys.system.beneath import (
    copy_open_file,
    create_beneath,
    folder_entries,
    held,
    open_beneath,
)
from buildsys.system.printable import printable_line
from buildsys.workers.job import Job

_SHOWN = 8
_SURROGATES = re.compile("[\ud800-\udfff]")
_MAX_PATH_BYTES = 1024  # as in the store's records


def collect_outputs(job: Job, work: int, place: int, hint: str) -> dict[str, CommandOutput]:
    """Copy the declared outputs from ``work`` to ``place``; log what is left out.

    Both are descriptors of folders.
    Raises: StageError: one is missing, empty, or not a file or folder.
    """
    declared: dict[str, str] = job.options["outputs"]
    files: dict[str, list[str]] = {}
    for label, path in declared.items():
        problem, remedy = "", ""
        try:
            files[label] = _files(work, path)
            problem = "" if files[label] else f"{path} is empty"
        except (FileNotFoundError, NotADirectoryError):
            problem = f"{path} does not exist"
        except OSError as error:
            problem, remedy = error.strerror or str(error), _remedy(error)
        if problem:
            others = _undeclared(work, ())
            wrote = f"it wrote {first_names(others, _SHOWN)}" if others else "it wrote nothing"
            text = f'the command {job.variant} of {job.model} wrote no output "{label}": {problem}'
            raise StageError(text, joined(wrote, remedy, hint))
    if left_out := _undeclared(work, declared.values()):
        job.progress(f"removed {first_names(left_out, _SHOWN)}, which no output declares")
    copied: dict[str, CommandOutput] = {}
    for label, path in declared.items():
        size = sum(_copy(job, work, place, name) for name in files[label])
        copied[label] = {"path": path, "files": len(files[label]), "bytes": size}
        if path.endswith("/"):
            folder = PurePosixPath(path)
            names = [str(PurePosixPath(name).relative_to(folder)) for name in files[label]]
            listing = create_beneath(place, f"{folder}{LISTING}")
            with os.fdopen(listing, "w", encoding="utf-8") as file:
                file.write(json.dumps(names, indent=0) + "\n")
    return copied


def _files(work: int, path: str) -> list[str]:
    """List a declared file, or everything but folders below a declared folder.

    Raises: OSError: it cannot be an output.
    """
    with held(open_beneath(work, path)) as descriptor:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
    if is_folder != path.endswith("/"):
        raise OSError(0, f"{path} is not a {'file' if is_folder else 'folder'}")
    files: list[str] = []
    waiting = [str(PurePosixPath(path))]
    if not is_folder:
        return waiting
    while waiting:
        folder = waiting.pop()
        for name, is_inner in folder_entries(work, folder):
            inner = f"{folder}/{name}"
            if len(os.fsencode(inner)) > _MAX_PATH_BYTES:
                raise OSError(0, f"a path in {path} has more than {_MAX_PATH_BYTES:,} bytes")
            if _SURROGATES.search(name):
                raise OSError(0, f"the name {printable_line(inner)} is not UTF-8")
            (waiting if is_inner else files).append(inner)
    return sorted(files)


def _copy(job: Job, work: int, place: int, path: str) -> int:
    """Copy one file; return its size in bytes. Raises: StageError."""
    try:
        with (
            held(open_beneath(work, path)) as source,
            held(create_beneath(place, path)) as target,
        ):
            return copy_open_file(source, target)
    except OSError as error:
        who = f"the command {job.variant} of {job.model}"
        problem = f"cannot copy {printable_line(path)}, which {who} wrote: {error.strerror}"
        raise StageError(problem, _remedy(error)) from None


def _remedy(error: OSError) -> str:
    is_link = error.errno == errno.ELOOP
    return "write files and folders only: `cp -L` copies what a link names" if is_link else ""


def _undeclared(work: int, declared: Iterable[str]) -> list[str]:
    """List files and folders outside of the declared outputs."""
    outputs = [PurePosixPath(path) for path in declared]
    names, waiting = [], [PurePosixPath()]
    while waiting:
        folder, entries = waiting.pop(), []
        with suppress(OSError):  # replaced meanwhile
            entries = folder_entries(work, str(folder))
        for name, is_folder in entries:
            path = folder / name
            if path in outputs or (name in RESERVED and folder == PurePosixPath()):
                continue
            if is_folder and any(path in output.parents for output in outputs):
                waiting.append(path)
            else:
                names.append(printable_line(f"{path}/" if is_folder else str(path)))
    return sorted(names)
