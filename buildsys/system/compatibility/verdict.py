"""The doctor's answer: all reasons at once, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCHEMA = "buildsys/doctor/1"


@dataclass(frozen=True)
class Reason:
    """Why an engine cannot run here, or cannot be trusted to."""

    kind: str  # a word that programs may rely on: "gpu", "library", "version", "digest", …
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return both as one line."""
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


@dataclass(frozen=True)
class Verdict:
    """Whether an engine can run here; it is true where it can."""

    engine: str  # the path that was asked for
    built: str  # in a few words, what it is: library, version, precision, GPU
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()  # what keeps it from nothing, and is worth knowing

    def __bool__(self) -> bool:
        """Return whether it can run."""
        return not self.reasons

    def __str__(self) -> str:
        """Return the whole answer, a line for each reason."""
        head = f"{self.engine}: {self.built}" if self.built else self.engine
        lines = [head, "it can run here" if self else "it cannot run here:"]
        lines += [f"  - {reason}" for reason in self.reasons]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the answer for programs."""
        reasons = [{"kind": r.kind, "problem": r.problem, "remedy": r.remedy} for r in self.reasons]
        facts = {"schema": SCHEMA, "engine": self.engine, "built": self.built, "runs": bool(self)}
        return {**facts, "reasons": reasons, "notes": list(self.notes)}
