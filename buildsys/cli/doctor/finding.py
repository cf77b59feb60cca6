"""One line of ``doit doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK, MISSING, BROKEN = "ok", "missing", "broken"  # broken: something that the project needs


@dataclass(frozen=True)
class Finding:
    """Something that was looked at, how it is, and what mends it."""

    about: str  # "python", "library", "extra", "toolchain", "backend", "gpu", "folder", "engine", "manifests"
    name: str
    state: str = OK
    text: str = ""
    mend: str = ""  # a command where there is one
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "about": self.about,
            "name": self.name,
            "state": self.state,
            "text": self.text,
            "mend": self.mend,
            **({"facts": dict(self.facts)} if self.facts else {}),
        }


def counted(number: int, word: str) -> str:
    """Return ``1 engine`` or ``3 engines``."""
    return f"{number} {word}{'s' * (number != 1)}"
