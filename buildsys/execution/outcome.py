"""How a target ended, for those who asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """How a target ended."""

    target: str
    status: str  # passed | unavailable
    seconds: float  # of the stage itself
    reason: str = ""
    hint: str = ""
    figures: Mapping[str, Any] = field(
        default_factory=dict
    )  # of the result file, without long lists
    log: Path = Path()
    waited: bool = (
        False  # nothing was run: another process or thread had built it when its turn came
    )
    restored: bool = False  # nothing was run: its outputs came from the store
