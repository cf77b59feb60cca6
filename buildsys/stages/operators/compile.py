"""Operator libraries: compiled from the sources that a manifest names, or taken over, and checked."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from buildsys.errors import StageError
from buildsys.stages.operators.library_check import check_library
from buildsys.system.c_includes import included_files, language_of, linker_of
from buildsys.system.compilers import LANGUAGES, compiler_command, compiler_environment

REGISTER = "RegisterCustomOps"  # ONNX Runtime calls it in a library of custom operators
_ERROR = re.compile(
    r"^(?P<where>[^:\s]+:\d+(?::\d+)?): (?:fatal )?error: (?P<text>.*)$", re.MULTILINE
)
_LINK_ERROR = re.compile(
    r"(undefined reference to .*|cannot find .*|multiple definition of [^;]*|undefined symbol: .*)"
)
_TIMEOUT_S = 600
# an undefined symbol is an error here, and not when an engine is loaded
_LINKING = ("-shared", "-Wl,-z,defs")


def make_library(entry: Mapping[str, Any], target: Path, project: Path) -> dict[str, Any]:
    """Write the library of ``entry`` (``sources`` and ``flags``, or ``file`` and ``symbol``); return its figures.

    Raises: StageError: the compiler refuses it (its first message is in the sentence, all of them in the log), or it
        is no library for this machine.
    """
    if "file" in entry:
        shown = entry["file"]
        check_library(project / shown, shown, entry["symbol"])
        shutil.copyfile(project / shown, target)
        return {"from": shown, "bytes": target.stat().st_size}
    shown = entry["sources"][0]
    _refuse_hidden_files(entry["flags"], shown, project)
    with TemporaryDirectory(dir=target.parent) as folder:
        objects = [
            _compile(source, Path(folder) / f"{index}.o", entry["flags"], project)
            for index, source in enumerate(entry["sources"])
        ]
        _link(objects, target, entry, project)
    check_library(target, f"what {shown} compiles to", REGISTER)
    return {
        "from": list(entry["sources"]),
        "flags": list(entry["flags"]),
        "bytes": target.stat().st_size,
    }


def _compile(source: str, target: Path, flags: Sequence[str], project: Path) -> Path:
    found = target.with_suffix(".d")
    options = ["-O2", "-fPIC", f"-ffile-prefix-map={project}=.", *_without_libraries(flags)]
    _run(
        language_of(source),
        [*options, "-c", source, "-o", str(target), "-MMD", "-MF", str(found)],
        source,
        project,
    )
    _refuse_unseen(source, found, project)
    return target


def _link(objects: Sequence[Path], target: Path, entry: Mapping[str, Any], project: Path) -> None:
    arguments = [*_LINKING, *map(str, objects), "-o", str(target), *entry["flags"]]
    _run(linker_of(entry["sources"]), arguments, entry["sources"][0], project)


def _run(language: str, arguments: Sequence[str], source: str, project: Path) -> None:
    command = compiler_command(language)
    if not command:
        variable, programs = LANGUAGES[language]
        raise StageError(
            f"no compiler for {source}: neither ${variable} nor {', '.join(programs)} is a program here",
            f"install one, set ${variable}, or give a built library as library: {{file: …}}",
        )
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, errors="replace", cwd=project, timeout=_TIMEOUT_S,
        env=compiler_environment(), check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    sys.stderr.write(f"{shlex.join([*command, *arguments])}\n{said}")  # into the target's log
    if done.returncode:
        raise StageError(
            f"{source} does not compile: {_first_error(said)}",
            "the compiler's whole output is in the log",
        )


def _first_error(said: str) -> str:
    found = _ERROR.search(said)
    if found:
        return f"{found['text']} ({found['where']})"
    link = _LINK_ERROR.search(said)
    if link:
        return link[1]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0] if lines else "the compiler says nothing"


def _without_libraries(flags: Sequence[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith(("-l", "-L", "-Wl,"))]


def _refuse_unseen(source: str, found: Path, project: Path) -> None:
    """Refuse headers of the project that no ``#include`` by a relative path leads to: no key would have them."""
    known = included_files(project / source)
    names = re.split(
        r"(?<!\\)\s+", found.read_text(errors="replace").partition(":")[2].replace("\\\n", " ")
    )
    for name in filter(None, names):
        file = (project / name.replace("\\ ", " ")).resolve()
        if file.is_relative_to(project.resolve()) and file not in {
            path.resolve() for path in known
        }:
            raise StageError(
                f"{source} includes {file.relative_to(project.resolve())} by way of a flag or a macro, so that a change"
                " of it would not be seen",
                'include it by its path from the file that needs it: #include "…"',
            )


def _refuse_hidden_files(flags: Sequence[str], shown: str, project: Path) -> None:
    for flag in flags:
        name = flag.removeprefix("-L").rpartition("=")[2].rpartition(",")[2]
        path = project / name
        inside = (
            path.resolve().is_relative_to(project.resolve()) and path.resolve() != project.resolve()
        )
        if name and not flag.startswith(("-I", "-i")) and inside and path.exists():
            raise StageError(
                f"the flag {flag} of {shown} names a file of the project, whose changes would not be seen",
                "put what it is built from into library.sources",
            )
