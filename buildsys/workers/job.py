"""What a worker is given and what it gives back. Standard library only: every toolchain imports this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from buildsys.errors import BuildsysError
from buildsys.system.interpreters.toolchain import Toolchain

RESULT_SCHEMA = "buildsys/result/1"


def _say_nothing(message: str) -> None:
    """Drop a progress message."""


def _raise(error: BuildsysError) -> NoReturn:
    """Fail as far as an exception gets."""
    raise error


@dataclass(frozen=True)
class Job:
    """One stage to run, with absolute paths. Outputs lie in a temporary folder that the executor publishes.

    Roles are the keys of ``inputs`` and ``outputs``. An optional input that was not produced is absent
    from ``inputs``, and so is one of ``advisory``. A stage may write further files beside its outputs
    (external data, failing tensors): the executor records whatever it finds in the folder.
    """

    target: str
    stage: str
    model: str
    variant: str
    options: Mapping[str, Any]
    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]
    project: Path
    advisory: Mapping[str, Path] = field(
        default_factory=dict
    )  # files for the words of an error, never for a result
    toolchain: Toolchain | None = (
        None  # the interpreter for the engine; None: the one that runs the other stages
    )
    timing_caches: Path | None = (
        None  # the folder of builders' timing caches, which decide no result
    )
    threads: int = (
        0  # that it may compute with, where its result does not depend on it; 0: all cores
    )
    progress: Callable[[str], None] = field(default=_say_nothing, compare=False)
    # end the stage here and now, in a callback of a C++ library that an exception would only bring to harm
    fail: Callable[[BuildsysError], NoReturn] = field(default=_raise, compare=False)

    def display_path(self, path: Path) -> str:
        """Return ``path`` relative to the project folder where possible."""
        return str(path.relative_to(self.project) if path.is_relative_to(self.project) else path)


@dataclass(frozen=True)
class StageResult:
    """What a stage found: written to the target's result file with the common header."""

    status: str = "passed"  # passed | failed | unavailable
    reason: str = ""  # one sentence; empty when passed
    hint: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
