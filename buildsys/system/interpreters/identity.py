"""Which Python a toolchain is and where it finds its modules, or why nothing can run in it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from buildsys.errors import StageError, Unavailable
from buildsys.system.interpreters.toolchain import (
    Toolchain,
    interpreter_environment,
    override_variable,
)

if TYPE_CHECKING:
    from buildsys.system.interpreters.probe import Answer

OLDEST = (3, 10)
_SCHEMA = "interpreter/1"

Stamp: TypeAlias = "list[int] | None"


class Memo(Protocol):
    """Remembers texts by name."""

    def get(self, digest: str) -> str | None:
        """Return what was stored under a name."""

    def set(self, digest: str, imports: str) -> None:
        """Store a text."""


@dataclass(frozen=True)
class Identity:
    """A Python interpreter."""

    implementation: str  # "CPython"
    version: str  # "3.10.13"
    full_version: str
    prefix: str
    standard: str  # the folder of its standard library
    path: tuple[str, ...]  # where it looks for modules

    @property
    def release(self) -> str:
        """Return implementation and release, in which language and bytecode stay the same."""
        return f"{self.implementation} {'.'.join(self.version.split('.')[:2])}"

    def finds(self, module: str) -> bool:
        """Tell whether it would find a module; nothing is imported."""
        return PathFinder.find_spec(module, list(self.path)) is not None


@dataclass(frozen=True)
class Inquiry:
    """What is known of a toolchain's interpreter; ``problem`` says why nothing can run in it."""

    identity: Identity | None
    problem: str = ""
    hint: str = ""
    lasting: bool = True  # it is so until somebody changes a file; else the next try may go better
    output: str = ""  # what was printed instead of an answer

    def require(self) -> Identity:
        """Return the interpreter.

        Raises: Unavailable: nothing can run in it. StageError: nothing could this time.
        """
        if self.identity is not None and not self.problem:
            return self.identity
        raise (Unavailable if self.lasting else StageError)(self.problem, self.hint)


@dataclass(frozen=True)
class _Known:
    """An answer of this process, and the state of the files that it rests on."""

    inquiry: Inquiry
    seen: Mapping[str, Stamp]


_known: dict[str, _Known] = {}
_asking = threading.Lock()


def inquire(toolchain: Toolchain, memo: Memo | None = None) -> Inquiry:
    """Return what a toolchain's interpreter is. It is started only where neither this process nor ``memo`` knows it.

    Raises: UsageError: BUILDSYS_INTERPRETER_LIMIT is not a time.
    """
    problem = _file_problem(toolchain)
    if problem is not None:
        return problem
    environment = interpreter_environment(toolchain, os.environ)
    name = _name(toolchain, environment)
    with _asking:  # threads that want the same wait for one answer
        known = _known.get(name)
        if known is None or known.seen != _stamps(known.seen):
            known = _known[name] = _remembered(name, memo) or _asked(toolchain, environment)
        if memo is not None and known.inquiry.identity is not None:
            text = json.dumps([asdict(known.inquiry.identity), known.seen])
            if memo.get(name) != text:
                memo.set(name, text)
    return _judged(toolchain, known.inquiry)


def _file_problem(toolchain: Toolchain) -> Inquiry | None:
    """Return what can be told from the file alone."""
    python = toolchain.python
    if not python.is_absolute():
        problem = f"there is no program {python} on PATH"
    elif not python.exists():
        problem = f"there is no {python}"
    elif python.is_dir():
        problem = f"{python} is a folder, not a Python interpreter"
    elif not os.access(python, os.X_OK):
        return _unusable(toolchain, f"{python} is not executable", f"chmod +x {python}")
    else:
        return None
    return _unusable(toolchain, problem)


def _remembered(name: str, memo: Memo | None) -> _Known | None:
    text = memo.get(name) if memo is not None else None
    if text is None:
        return None
    fields, seen = json.loads(text)
    if seen != _stamps(seen):
        return None
    return _Known(Inquiry(Identity(**{**fields, "path": tuple(fields["path"])})), seen)


def _asked(toolchain: Toolchain, environment: Mapping[str, str]) -> _Known:
    # a run with nothing to do remembers, and need not wait for these
    from buildsys.system.interpreters.probe import ask, limit_s
    from buildsys.system.interpreters.probe_scripts import IDENTITY

    try:
        answer = ask(toolchain.python, IDENTITY, (), environment, limit_s(os.environ))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return _Known(_unusable(toolchain, f"{toolchain.python} cannot be started: {reason}"), {})
    if answer.fields is None:
        return _Known(_without_answer(toolchain, answer), {})
    fields = dict(answer.fields)
    if (
        fields.pop("pid", answer.pid) != answer.pid
    ):  # its end, signals and descriptors would be those of a shell
        hint = f'write `exec` before the interpreter in {toolchain.python}: exec …/python "$@"'
        return _Known(
            _unusable(toolchain, f"{toolchain.python} starts Python as a second process", hint), {}
        )
    identity = Identity(**{**fields, "path": tuple(fields["path"])})
    return _Known(Inquiry(identity), _stamps(_resting_on(identity)))


def _without_answer(toolchain: Toolchain, answer: Answer) -> Inquiry:
    python = toolchain.python
    if answer.in_time and not answer.crashed:
        printed = f" and printed {answer.last_line!r}" if answer.last_line else ""
        return _unusable(
            toolchain,
            f"{python} is no working Python: it {answer.how}{printed}",
            output=answer.output,
        )
    from buildsys.system.interpreters.probe import LIMIT_VARIABLE

    more_time = "" if answer.in_time else f"; {LIMIT_VARIABLE}=2min allows it more time"
    hint = f"try `{python} -c 'import sys'`{more_time}"
    return _unusable(
        toolchain,
        f"{python} {answer.how} when it was started",
        hint,
        lasting=False,
        output=answer.output,
    )


def _judged(toolchain: Toolchain, found: Inquiry) -> Inquiry:
    """Return an answer with what speaks against running stages in that interpreter."""
    identity = found.identity
    if identity is None or tuple(map(int, identity.version.split(".")[:2])) >= OLDEST:
        return found
    wanted = ".".join(map(str, OLDEST))
    told = _unusable(
        toolchain,
        f"{toolchain.python} is Python {identity.version}, and {wanted} or newer is needed",
    )
    return Inquiry(identity, told.problem, told.hint)


def _unusable(
    toolchain: Toolchain, problem: str, hint: str = "", *, lasting: bool = True, output: str = ""
) -> Inquiry:
    name = toolchain.name
    hint = (
        hint
        or f"set toolchains.{name}.python in configs/project.yaml, or {override_variable(name)} on this machine"
    )
    return Inquiry(None, f"the toolchain {name} cannot be used: {problem}", hint, lasting, output)


def _name(toolchain: Toolchain, environment: Mapping[str, str]) -> str:
    """Return what an answer is remembered under: all that decides which interpreter starts, and how."""
    python = toolchain.python
    files = [
        python,
        python.resolve(),
        python.parent / "pyvenv.cfg",
        python.parent.parent / "pyvenv.cfg",
    ]
    variables = sorted(
        (key, value)
        for key, value in environment.items()
        if key.startswith("PYTHON") or key == "HOME"
    )
    about = [list(_stamps(map(str, files)).items()), variables, sorted(toolchain.env.items())]
    return f"{_SCHEMA}:{hashlib.sha256(json.dumps(about).encode()).hexdigest()}"


def _resting_on(identity: Identity) -> list[str]:
    """Return the files that decide where the interpreter looks for modules: folders of its path, and .pth files."""
    files = []
    for entry in identity.path:
        files.append(entry)
        with suppress(OSError):  # an archive, or nothing at all
            names = os.listdir(entry)  # noqa: PTH208 - no path is wanted
            files += sorted(f"{entry}/{name}" for name in names if name.endswith(".pth"))
    return files


def _stamps(files: Iterable[str]) -> dict[str, Stamp]:
    return {file: _stamp(file) for file in files}


def _stamp(path: str) -> Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return [found.st_mtime_ns, found.st_size, found.st_ino]
