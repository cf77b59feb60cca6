"""Command stage: run a program from declared inputs to declared outputs.

The program starts in an empty folder. Its inputs are links in ``inputs/``, so paths in arguments
and results are the same in every checkout, and it finds nothing else by a relative path.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, Unavailable, joined
from buildsys.manifest.command_templates import (
    FIGURES,
    FIGURES_FILE,
    INPUTS_FOLDER,
    TEMPORARY_FOLDER,
    fill_in,
    references,
)
from buildsys.stages.command.outputs import (
    check_limits,
    collect_outputs,
    empty_folder,
    read_figures,
)
from buildsys.system.printable import printable
from buildsys.system.processes import describe_exit
from buildsys.system.programs import find_program, missing_requirement, program_environment
from buildsys.system.versions import tool_versions
from buildsys.workers.job import Job, StageResult

_LAST_LINES = 12  # shown of a failed program
_LAST_CHARACTERS = 1 << 14
_WAIT_FOR_OUTPUT_S = 1.0  # a process left in the background may keep the pipe open


def run(job: Job) -> StageResult:
    """Run the command in a new folder and copy its outputs.

    Raises: StageError: it failed, or wrote no output. Unavailable: it cannot run here.
    """
    versions = _check_machine(job)
    place = job.outputs["result"].parent
    work = place.with_name(f"{place.name},work")  # a comma is in no name
    (work / TEMPORARY_FOLDER).mkdir(parents=True)
    folders = {folder: folder.lstat() for folder in (work, place)}
    try:
        return _run_in(job, folders, versions)
    finally:
        if _are_in_place({work: folders[work]}):
            empty_folder(work)
            work.rmdir()


def _run_in(
    job: Job, folders: Mapping[Path, os.stat_result], versions: Mapping[str, str]
) -> StageResult:
    """Run the command in the first folder and copy its outputs to the second one."""
    work, place = folders
    paths = {f"inputs.{label}": path for label, path in _link_inputs(job, work).items()}
    written: Mapping[str, str] = job.options["outputs"]
    for label, path in written.items():
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        paths[f"outputs.{label}"] = path.rstrip("/")
    paths[FIGURES] = FIGURES_FILE
    arguments = [fill_in(text, paths.__getitem__) for text in job.options["run"]]
    seconds = _run_program(job, arguments, work)
    _check_folders(job, folders)
    empty_folder(place)  # a link in it would lead our own outputs elsewhere
    figures: dict[str, Any] = {
        "toolchain": versions,
        "run": arguments,
        "program_seconds": round(seconds, 3),
    }
    failed = ""
    if any(FIGURES in references(text) for text in job.options["run"]):
        reported = read_figures(work, job)
        figures["figures"], failed = check_limits(reported, job.options.get("limits", {}), job)
    if failed:  # nobody must mistake its outputs for good ones
        return StageResult("failed", failed, log_hint(job), figures)
    figures["outputs"] = collect_outputs(job, work, place, log_hint(job))
    _check_folders(job, folders)
    return StageResult(figures=figures)


def _are_in_place(folders: Mapping[Path, os.stat_result]) -> bool:
    """Check that folders are still those of before, and no links."""
    return all(
        path.is_dir() and not path.is_symlink() and os.path.samestat(path.lstat(), status)
        for path, status in folders.items()
    )


def _check_folders(job: Job, folders: Mapping[Path, os.stat_result]) -> None:
    """Refuse folders that the program has put in the place of ours. Raises: StageError."""
    if not _are_in_place(folders):
        problem = f"the command {job.variant} of {job.model} replaced its working folder"
        hint = "change only what is in the folder that the program starts in"
        raise StageError(problem, joined(hint, log_hint(job)))


def log_hint(job: Job) -> str:
    """Return a hint at the log of this process, "" on a terminal."""
    try:
        path = Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()
    except (OSError, ValueError):  # not on Linux, or captured
        return ""
    return f"full log: {job.display_path(path)}" if path.suffix == ".log" else ""


def _check_machine(job: Job) -> dict[str, str]:
    """Return the versions of Python and the declared distributions.

    Raises: Unavailable: something is missing.
    """
    toolchain, options = job.toolchain, job.options
    if missing := missing_requirement(toolchain, options["versions"], options["device"]):
        raise Unavailable(*missing)
    versions = tool_versions(("python", *options["versions"]), toolchain)
    name = {"name": toolchain.name} if toolchain is not None else {}
    return {**name, **versions}


def _link_inputs(job: Job, work: Path) -> dict[str, str]:
    """Link all inputs into the working folder; return their paths.

    Raises: Unavailable: another target did not write one. StageError: a file does not exist.
    """
    paths: dict[str, str] = {}
    for label, name in job.options["files"].items():
        source = job.project / name
        if name.endswith("/"):
            files = [path for path in source.rglob("*") if "__pycache__" not in path.parts]
            names = [str(path.relative_to(source)) for path in files if path.is_file()]
            paths[label] = _link(source, names, work, label)
        else:
            paths[label] = f"{_link(source.parent, [source.name], work, label)}/{source.name}"
    for label, reference in job.options["references"].items():
        role = f"input.{label}"
        if role not in job.inputs:
            problem = f"{{{reference}}} does not exist, as the target that writes it cannot run"
            raise Unavailable(problem, f"see `buildsys explain {job.target}`")
        main = job.inputs[role]
        if label in job.options["listed"]:
            names = json.loads(main.read_text(encoding="utf-8"))
            paths[label] = _link(main.with_suffix(""), names, work, label)
        else:
            several = [path for input_role, path in job.inputs.items()
                       if input_role == role or input_role.startswith(f"{role}.")]  # fmt: skip
            names = [path.name for path in several if path.parent == main.parent]
            paths[label] = f"{_link(main.parent, names, work, label)}/{main.name}"
    return paths


def _link(folder: Path, names: list[str], work: Path, label: str) -> str:
    """Link files of a folder into ``inputs/LABEL``; return this path."""
    place = f"{INPUTS_FOLDER}/{label}"
    for name in names:
        link = work / place / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / name)
    (work / place).mkdir(parents=True, exist_ok=True)
    return place


def _run_program(job: Job, arguments: list[str], work: Path) -> float:
    """Run the program with its output in the log; return its time.

    It stays in the process group of this process, so whatever ends the job ends it as well.
    Raises: StageError: it failed. Unavailable: there is no such program.
    """
    passed = {name: os.environ[name] for name in job.options["pass"] if name in os.environ}
    base = {**os.environ, **job.environment}
    environment = program_environment(job.toolchain, base, work / TEMPORARY_FOLDER)
    environment |= {**passed, **job.options["env"]}
    program = find_program(arguments[0], job.toolchain, environment)
    if program is None:
        hint = "install it, or name the toolchain that has it"
        raise Unavailable(f"there is no program {arguments[0]}", hint)
    _write(f"$ {shlex.join(arguments)}\n")
    begun = time.perf_counter()
    try:
        process = subprocess.Popen(
            [program, *arguments[1:]], cwd=work, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        problem = f"cannot run {arguments[0]}: {(error.strerror or str(error)).lower()}"
        raise StageError(problem, "check the file and its permissions") from None
    ending: list[str] = []
    reader = threading.Thread(target=_copy_output, args=(process, ending), daemon=True)
    reader.start()
    code = process.wait()
    seconds = time.perf_counter() - begun
    reader.join(_WAIT_FOR_OUTPUT_S)
    if code != 0:
        text = f"exited with code {code}" if code > 0 else describe_exit(code)
        lines = printable("".join(ending)).split("\n")
        last = [f"  {line.rstrip()}" for line in lines if line.strip()][-_LAST_LINES:]
        log = log_hint(job)
        hint_lines = [log, *(["its last lines:", *last] if last else [])] if log else []
        raise StageError(f"the command {job.variant} of {job.model} {text}", "\n".join(hint_lines))
    return seconds


def _copy_output(process: subprocess.Popen[str], ending: list[str]) -> None:
    """Copy the output of a process to the log; keep its end."""
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            _write(line)
            ending.append(line[-_LAST_CHARACTERS:])
            del ending[: -_LAST_LINES * 2]


def _write(text: str) -> None:
    sys.stdout.write(text)  # stdout is the log
    sys.stdout.flush()
