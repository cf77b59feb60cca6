"""One line of doit doctor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK, MISSING, BROKEN = "ok", "missing", "broken"  # broken: something that the project needs


@dataclass(frozen=True)
class Check:
    """State of one part of the installation, with a remedy."""

    kind: str  # python, project, library, extra, toolchain, backend, gpu, folder or engine
    name: str
    state: str = OK
    text: str = ""
    remedy: str = ""  # a command where there is one
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the check under the field names of the JSON output."""
        fields = {
            "about": self.kind,
            "name": self.name,
            "state": self.state,
            "text": self.text,
            "mend": self.remedy,
        }
        return {**fields, "facts": dict(self.facts)} if self.facts else fields


def counted(number: int, noun: str) -> str:
    """Return ``1 engine`` or ``3 engines``."""
    return f"{number} {noun}{'s' * (number != 1)}"
