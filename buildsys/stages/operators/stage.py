"""Operators stage: local functions and libraries of a model's custom operators."""

import os
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
from buildsys.stages.operators.result import OperatorLibrary, OperatorsResult
from buildsys.system.compilers import (
    LANGUAGES,
    compiler_command,
    compiler_environment,
    included_files,
    language_of,
    linker_of,
)
from buildsys.system.files import sha256_of
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """Write ``functions`` (and ``functions.BACKEND``) and one ``library.NAME`` per library.

    Raises: StageError: a function is invalid, a source does not compile, a library does not load.
    """
    functions = {}
    for role, references in job.options.get("functions", {}).items():
        # libraries do not need onnx
        from buildsys.stages.operators.local_functions import function_model, origins_of

        job.progress("making the local functions")
        model = function_model(references, job.project)
        job.outputs[role].write_bytes(model.SerializeToString(deterministic=True))
        functions[role] = origins_of(model)
    libraries: dict[str, OperatorLibrary] = {}
    for name, entry in job.options.get("libraries", {}).items():
        target = job.outputs[f"library.{name}"]
        job.progress(f"making the library {name}")
        library = make_library(entry, target, job.project)
        libraries[name] = {**library, "sha256": sha256_of(target)}
    return StageResult(figures=OperatorsResult(functions=functions, libraries=libraries))


_ERROR = re.compile(r"error:|undefined (reference|symbol)|cannot find |multiple definition")
_TIMEOUT_S = 600
# an undefined symbol fails the link instead of the load of an engine
_LINK_FLAGS = ("-shared", "-Wl,-z,defs")


def make_library(entry: Mapping[str, Any], target: Path, project: Path) -> OperatorLibrary:
    """Write the library of ``entry`` and return its figures.

    ``entry`` has ``sources`` and ``flags``, or ``file``.
    Raises: StageError: it does not compile (all messages go to the log), or is no library.
    """
    if "file" in entry:
        file = entry["file"]
        with (project / file).open("rb") as stream:
            if stream.read(4) != b"\x7fELF":
                raise StageError(
                    f"{file} is not a shared library for Linux (ELF)",
                    "name C or C++ files as library: {sources: […]}",
                )
        shutil.copyfile(project / file, target)
        return {"from": file, "bytes": target.stat().st_size}
    sources, flags = entry["sources"], entry["flags"]
    compile_flags = [flag for flag in flags if not flag.startswith(("-l", "-L", "-Wl,"))]
    with TemporaryDirectory(dir=target.parent) as folder:
        objects = []
        for index, source in enumerate(sources):
            file = Path(folder) / f"{index}.o"
            dependencies = file.with_suffix(".d")
            options = ["-O2", "-fPIC", f"-ffile-prefix-map={project}=.", *compile_flags]
            output = ["-o", str(file), "-MMD", "-MF", str(dependencies)]
            _run(language_of(source), [*options, "-c", source, *output], source, project)
            _refuse_untracked(source, dependencies, flags, project)
            objects.append(str(file))
        command = [*_LINK_FLAGS, *objects, "-o", str(target), *flags]
        _run(linker_of(sources), command, sources[0], project)
    return {"from": list(sources), "flags": list(flags), "bytes": target.stat().st_size}


def _run(language: str, arguments: Sequence[str], source: str, project: Path) -> None:
    command = compiler_command(language)
    if not command:
        variable, programs = LANGUAGES[language]
        raise StageError(
            f"no compiler for {source}: neither ${variable} nor {', '.join(programs)} is installed",
            f"install one, set ${variable}, or use a built library as library: {{file: …}}",
        )
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, errors="replace", cwd=project,
        timeout=_TIMEOUT_S, env=compiler_environment(), check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    sys.stderr.write(f"{shlex.join([*command, *arguments])}\n{output}")  # to the target's log
    if done.returncode:
        lines = [line.strip() for line in output.splitlines() if _ERROR.search(line)]
        raise StageError(
            f"{source} does not compile: {lines[0] if lines else 'the compiler failed'}",
            "the log has the compiler's complete output",
        )


def _refuse_untracked(source: str, dependencies: Path, flags: Sequence[str], project: Path) -> None:
    """Refuse files of the project that only a flag or a macro names: they are in no key."""
    root = project.resolve()
    folders = root, (project / source).resolve().parent
    rule = dependencies.read_text(errors="replace").partition(":")[2].replace("\\\n", " ")
    names = [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", rule)]
    names += [
        flag.removeprefix("-L").rpartition("=")[2].rpartition(",")[2]
        for flag in flags
        if not flag.startswith(("-I", "-i"))
    ]
    tracked = {root, *(path.resolve() for path in included_files(project / source))}
    for file in ((project / name).resolve() for name in filter(None, names)):
        if any(map(file.is_relative_to, folders)) and file not in tracked and file.exists():
            name = os.path.relpath(file, root)
            raise StageError(
                f"{source} uses {name} through a flag or a macro, so a change to it would go"
                " unnoticed",
                'include it by its path relative to the including file, #include "…", or add its'
                " sources to library.sources",
            )
