"""Expected failures and their exit codes.

Each prints as one line: what is wrong, where, and what to do next. A choice of remedies follows as
a short list. Errors travel from worker to orchestrator as JSON, so they consist of strings only.
"""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class BuildsysError(Exception):
    """Base of every expected failure."""

    exit_code: ClassVar[int] = 2
    seconds: float | None = None  # without waiting for locks


@dataclass(eq=False)
class ManifestError(BuildsysError):
    """An error in a manifest, with its position and a remedy."""

    exit_code: ClassVar[int] = 3

    file: Path
    key: tuple[str | int, ...]
    problem: str
    hint: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return ``file:line:column: dotted.key: problem; hint``, as far as known."""
        position = (self.file, self.line, self.column)
        where = ":".join(str(part) for part in position if part is not None)
        dotted = ".".join(str(part) for part in self.key)
        head = f"{where}: {dotted}: " if dotted else f"{where}: "
        text = head + self.problem + (f"; {self.hint}" if self.hint else "")
        return " ".join(text.split("\n"))  # a field's name may contain newlines


@dataclass(eq=False)
class ManifestErrors(BuildsysError):
    """All errors in the manifests of a project."""

    exit_code: ClassVar[int] = 3

    errors: tuple[ManifestError, ...]

    def __str__(self) -> str:
        """Return one line per error, in file order."""
        return "\n".join(str(error) for error in self.errors)


def with_hint(problem: str, hint: str) -> str:
    """Return problem and hint, on one line if the hint is short."""
    return f"{problem}\n{hint}" if "\n" in hint else problem + (f"; {hint}" if hint else "")


def joined(*sentences: str) -> str:
    """Return the nonempty sentences on one line, or several for a list."""
    nonempty = [sentence for sentence in sentences if sentence]
    return ("\n" if any("\n" in sentence for sentence in nonempty) else "; ").join(nonempty)


def describe_os_error(error: OSError) -> str:
    """Write the file, the problem and a remedy as one sentence."""
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        remedy = "the folders of the project must be writable"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        remedy = "free some space, or raise the limit; finished targets are kept"
    else:
        remedy = ""
    problem = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    return with_hint(f"cannot use {problem}" if error.filename else problem, remedy)


@dataclass(eq=False)
class UsageError(BuildsysError):
    """A command with invalid arguments or settings."""

    exit_code: ClassVar[int] = 3

    problem: str
    hint: str = ""

    def __str__(self) -> str:
        """Return problem and hint on one line."""
        return self.problem + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class StageError(BuildsysError):
    """An expected failure of a stage."""

    problem: str
    hint: str = ""  # one line, or a short list of lines
    changes: Sequence[str] = ()  # of the manifest, as YAML, that may help: a build tries them
    is_external: bool = False  # caused by the machine or another program, not by the model

    def __str__(self) -> str:
        """Return problem and hint."""
        return with_hint(self.problem, self.hint)


class CheckFailed(StageError):
    """A check required by the manifest failed (numbers, node support, output names)."""

    exit_code: ClassVar[int] = 1


class Unavailable(StageError):
    """A stage cannot run on this machine; the hint is the remedy."""


class EngineError(StageError):
    """A built engine that cannot be loaded, or run as requested."""


@dataclass(eq=False)
class WorkerDied(StageError):
    """A worker process ended without a result."""

    is_external: bool = True
