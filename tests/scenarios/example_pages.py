"""Pages of the documentation, run as printed.

A fenced block with the first line ``# file: PATH`` (``// file: PATH`` in C) is a file of the
project; a later block with the same path replaces it. A ``console`` block is a terminal: each line
after ``$ `` runs there, and all following lines except ``...`` must appear in its output, in that
order; ``...`` within a line matches anything.
"""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from documented_commands import PROGRAMS, blocks, check_command
from project_folder import TIMEOUT_S, ProjectFolder, Ran

_FILE = re.compile(r"(?:#|//) file: (?P<path>\S+)\n")


def run_page(project: ProjectFolder, page: Path, not_run: Mapping[str, str] | None = None) -> int:
    """Write the files and run the commands of a page; return the number of commands.

    Commands of ``not_run`` (command -> reason) are only parsed.
    """
    found = 0
    for language, text in blocks(page):
        if not _write_file(project, text) and language == "console":
            found += replay(project, text, not_run or {})
    return found


def write_files(project: ProjectFolder, page: Path) -> None:
    """Write the files of a page that another one starts from."""
    for _, text in blocks(page):
        _write_file(project, text)


def _write_file(project: ProjectFolder, text: str) -> bool:
    """Write a block with the name of a file; return False for others."""
    named = _FILE.match(text)
    if named:
        file = project.root / named["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text[named.end() :], encoding="utf-8")
    return named is not None


def replay(project: ProjectFolder, terminal: str, not_run: Mapping[str, str]) -> int:
    """Run the commands of a console block; return their number."""
    commands = [part.splitlines() for part in re.split(r"^\$ ", terminal, flags=re.MULTILINE)[1:]]
    for command, *expected in commands:
        if command in not_run:
            check_command(command)
            continue
        done = _run(project, command)
        printed = iter(f"{done.out}\n{done.err}".splitlines())
        lines = [line for line in expected if line.strip() not in ("", "...")]
        for line in lines:
            pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
            assert any(re.search(pattern, said) for said in printed), (
                f"`{command}` did not print {line!r} (in this order), but\n{done.out}\n{done.err}"
            )
        if not lines:  # a page shows what a command that fails prints
            assert done.code == 0, f"`{command}`: exit code {done.code}\n{done.out}\n{done.err}"
    return len(commands)


def _run(project: ProjectFolder, command: str) -> Ran:
    program, *arguments = shlex.split(command)
    if program in PROGRAMS:
        return project.doit(*arguments, program=program)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=project.root,
        env=project.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
