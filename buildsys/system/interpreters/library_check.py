"""Whether libraries load in an interpreter, and what they say of themselves: each asked in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.system.interpreters.probe import ask
from buildsys.system.interpreters.probe_scripts import MODULE

_AT_A_TIME = 4


@dataclass(frozen=True)
class Module:
    """A library in an interpreter."""

    name: str
    version: str = ""
    missing: bool = False
    problem: str = ""  # why it does not load, where it is there
    facts: Mapping[str, Any] | None = (
        None  # what else it said, such as the execution providers of onnxruntime
    )

    @property
    def loads(self) -> bool:
        """Whether it can be used."""
        return not self.missing and not self.problem


def ask_modules(
    python: Path, names: Iterable[str], environment: Mapping[str, str], within_s: float
) -> dict[str, Module]:
    """Return what became of importing each module. One that crashes or hangs harms no other."""
    wanted = list(dict.fromkeys(names))
    with ThreadPoolExecutor(_AT_A_TIME) as threads:
        found = threads.map(lambda name: _asked(python, name, environment, within_s), wanted)
        return dict(zip(wanted, found, strict=True))


def _asked(python: Path, name: str, environment: Mapping[str, str], within_s: float) -> Module:
    try:
        answer = ask(python, MODULE, (name,), environment, within_s)
    except OSError as error:
        return Module(name, problem=f"{python} cannot be started: {error.strerror}")
    if answer.fields is None:
        printed = (
            f": {answer.last_line}"
            if answer.last_line and answer.in_time and not answer.crashed
            else ""
        )
        return Module(name, problem=f"the interpreter {answer.how} while it was imported{printed}")
    known = {"version", "missing", "problem"}
    facts = {field: value for field, value in answer.fields.items() if field not in known}
    return Module(
        name,
        version=str(answer.fields.get("version") or ""),
        missing=bool(answer.fields.get("missing")),
        problem="" if answer.fields.get("missing") else str(answer.fields.get("problem") or ""),
        facts=facts,
    )
