"""Command stage: run a program from declared inputs to declared outputs.

The program starts in an empty folder. Its inputs are links in ``inputs/``, so paths in arguments
and results are the same in every checkout, and it finds nothing else by a relative path.
"""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from buildsys.errors import StageError, Unavailable
from buildsys.manifest.command_templates import (
    FIGURES,
    FIGURES_FILE,
    INPUTS_FOLDER,
    TEMPORARY_FOLDER,
    fill_in,
    references,
)
from buildsys.stages.command.held_folder import HeldFolder
from buildsys.stages.command.outputs import check_limits, collect_outputs, read_figures
from buildsys.store.publish import disk_errors
from buildsys.system.printable import printable
from buildsys.system.processes import describe_exit, end_descendants
from buildsys.system.programs import find_program, missing_requirement, program_environment
from buildsys.system.versions import tool_versions
from buildsys.workers.job import Job, StageResult

_LAST_LINES = 12  # shown of a failed program
_LONGEST_LINE = 1 << 14  # characters
_WAIT_FOR_OUTPUT_S = 1.0  # a process left in the background may keep the pipe open


def run(job: Job) -> StageResult:
    """Run the command in a new folder and copy its outputs.

    Raises: StageError: it failed, or wrote no output. Unavailable: it cannot run here.
    """
    options, toolchain = job.options, job.toolchain
    on_gpu = options["device"] == "cuda"
    if missing := missing_requirement(toolchain, options["versions"], on_gpu=on_gpu):
        raise Unavailable(*missing)
    versions = tool_versions(("python", *options["versions"]), toolchain)
    versions |= {"name": toolchain.name} if toolchain else {}
    place = job.outputs["result"].parent
    work = place.with_name(f"{place.name},work")  # a comma is in no name
    with HeldFolder.hold(work) as working_folder, HeldFolder.hold(place) as output_folder:
        try:
            return _run_in(job, working_folder, output_folder, versions)
        finally:
            with disk_errors(f"empty {job.display_path(work)}"):
                working_folder.clear()


def _run_in(job: Job, work: HeldFolder, place: HeldFolder, versions: dict[str, str]) -> StageResult:
    """Run the command in ``work`` and copy its outputs to ``place``."""
    (work.path / TEMPORARY_FOLDER).mkdir()
    paths = {f"inputs.{label}": path for label, path in _link_inputs(job, work.path).items()}
    for label, path in job.options["outputs"].items():
        (work.path / path).parent.mkdir(parents=True, exist_ok=True)
        paths[f"outputs.{label}"] = path.rstrip("/")
    paths[FIGURES] = FIGURES_FILE
    arguments = [fill_in(text, paths.__getitem__) for text in job.options["run"]]
    seconds = round(_run_program(job, arguments, work.path), 3)
    if not (work.is_in_place() and place.is_in_place()):
        problem = "removed or replaced its working folder, or one above it"
        hint = "nothing was published; it may only write inside its working folder"
        raise StageError(f"the command {job.variant} of {job.model} {problem}", hint)
    place.clear()
    figures: dict[str, Any] = {"toolchain": versions, "run": arguments, "program_seconds": seconds}
    if any(FIGURES in references(text) for text in job.options["run"]):
        reported = read_figures(work, job)
        figures["figures"], problem = check_limits(reported, job.options.get("limits", {}), job)
        if problem:  # nobody must mistake its outputs for good ones
            return StageResult("failed", problem, figures=figures)
    figures["outputs"] = collect_outputs(job, work, place)
    return StageResult(figures=figures)


def _link_inputs(job: Job, work: Path) -> dict[str, str]:
    """Link all inputs into the working folder; return their paths.

    Raises: Unavailable: another target did not write one.
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
            files = [main, *(job.inputs[r] for r in job.inputs if r.startswith(f"{role}."))]
            names = [path.name for path in files if path.parent == main.parent]
            paths[label] = f"{_link(main.parent, names, work, label)}/{main.name}"
    return paths


def _link(folder: Path, names: list[str], work: Path, label: str) -> str:
    """Link files of a folder into ``inputs/LABEL``; return this path."""
    place = f"{INPUTS_FOLDER}/{label}"
    (work / place).mkdir(parents=True, exist_ok=True)
    for name in names:
        link = work / place / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder / name)
    return place


def _run_program(job: Job, arguments: list[str], work: Path) -> float:
    """Run the program with its output in the log; return its time in seconds.

    It stays in the process group of this process, so whatever ends the job ends it too.
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
    ending: deque[str] = deque(maxlen=_LAST_LINES)
    reader = threading.Thread(target=_copy_output, args=(process, ending), daemon=True)
    reader.start()
    code = process.wait()
    seconds = time.perf_counter() - begun
    end_descendants()  # one left in the background could change what is collected
    reader.join(_WAIT_FOR_OUTPUT_S)
    if code != 0:
        text = f"exited with code {code}" if code > 0 else describe_exit(code)
        lines = [f"  {printable(line).rstrip()}" for line in ending if line.strip()]
        hint = "\n".join(["its last lines:", *lines]) if lines else ""
        raise StageError(f"the command {job.variant} of {job.model} {text}", hint)
    return seconds


def _copy_output(process: subprocess.Popen[str], ending: deque[str]) -> None:
    """Copy the output of a process to the log; remember its end."""
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            _write(line)
            ending.append(line[-_LONGEST_LINE:])


def _write(text: str) -> None:
    sys.stdout.write(text)  # stdout is the log
    sys.stdout.flush()
