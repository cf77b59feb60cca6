"""The result of a compatibility check: all reasons with their remedies."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "buildsys/doctor/1"


@dataclass(frozen=True)
class Reason:
    """A reason against running an engine here."""

    kind: str  # for programs: "gpu", "library", "version", "digest", …
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return problem and remedy on one line."""
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


@dataclass(frozen=True)
class CompatibilityResult:
    """The result of a check; true if the engine can run."""

    engine: str  # the path as given
    built: str  # a summary: library, version, precision, GPU
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()  # worth knowing, but no obstacle

    def __bool__(self) -> bool:
        """Return True if the engine can run."""
        return not self.reasons

    def __str__(self) -> str:
        """Return the result with one line per reason."""
        head = f"{self.engine}: {self.built}" if self.built else self.engine
        lines = [head, "it can run here" if self else "it cannot run here:"]
        lines += [f"  - {reason}" for reason in self.reasons]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the result for programs."""
        facts = {"schema": SCHEMA, "engine": self.engine, "built": self.built, "runs": bool(self)}
        reasons = [asdict(reason) for reason in self.reasons]
        return {**facts, "reasons": reasons, "notes": list(self.notes)}
