"""The failures that buildsys expects, and the exit code of each.

Every class prints as one line that says what is wrong, where, and what to do next; where there is a choice of that, as
a short list below the line. Errors cross the
border between a worker and the orchestrator as JSON, so each is made of plain strings only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class BuildsysError(Exception):
    """Base of every expected failure."""

    exit_code: ClassVar[int] = 2


@dataclass(eq=False)
class ManifestError(BuildsysError):
    """A manifest is wrong: says where, what, and how to put it right."""

    exit_code: ClassVar[int] = 3

    file: Path
    key: tuple[str | int, ...]
    problem: str
    hint: str = ""
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return ``file:line:column: dotted.key: problem; hint`` with the parts that are known."""
        where = ":".join(
            str(part) for part in (self.file, self.line, self.column) if part is not None
        )
        dotted = ".".join(str(part) for part in self.key)
        head = f"{where}: {dotted}: " if dotted else f"{where}: "
        return head + self.problem + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class ManifestErrors(BuildsysError):
    """All that is wrong with the manifests of a project, found in one pass."""

    exit_code: ClassVar[int] = 3

    errors: tuple[ManifestError, ...]

    def __str__(self) -> str:
        """Return one line per error, in file order."""
        return "\n".join(str(error) for error in self.errors)


def with_hint(problem: str, hint: str) -> str:
    """Return a problem and what to do about it: on one line, or where the hint has several lines, above these."""
    return f"{problem}\n{hint}" if "\n" in hint else problem + (f"; {hint}" if hint else "")


def joined(*sentences: str) -> str:
    """Return sentences as one, or one below the other where one of them is a list."""
    kept = [sentence for sentence in sentences if sentence]
    return ("\n" if any("\n" in sentence for sentence in kept) else "; ").join(kept)


@dataclass(eq=False)
class UsageError(BuildsysError):
    """A command was called in a way that cannot work."""

    exit_code: ClassVar[int] = 3

    problem: str
    hint: str = ""

    def __str__(self) -> str:
        """Return the problem and the hint on one line."""
        return self.problem + (f"; {self.hint}" if self.hint else "")


@dataclass(eq=False)
class StageError(BuildsysError):
    """A stage could not do its work for a reason that its user can act on."""

    problem: str
    hint: str = ""  # one line, or a short list of lines

    def __str__(self) -> str:
        """Return the problem and the hint."""
        return with_hint(self.problem, self.hint)


@dataclass(eq=False)
class CheckFailed(StageError):
    """A check that the manifest asks for did not hold (numbers, node support, output names)."""

    exit_code: ClassVar[int] = 1


@dataclass(eq=False)
class Unavailable(StageError):
    """The stage cannot run on this machine: the reason, and what to install or where to run it."""


@dataclass(eq=False)
class WorkerDied(StageError):
    """A worker process ended without an answer: crash, kill, out of memory or time-out."""
