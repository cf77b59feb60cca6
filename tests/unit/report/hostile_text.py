"""Hostile text in every free text of a report."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from buildsys.stages.bench.result import ENGINE_CONTENDERS

HOSTILE = (
    "``` `` <img src=x onerror=alert(1)> ]]> &lt;b&gt; | ![i](http://x) [l](http://x)"
    "\x1b[2J\x07\u202e\n\n```\n# heading\n<script>alert(1)</script>\n~~~\n"
)
# checked against fixed sets of names before a report is made
FIXED = {"model", "stage", "target", "status", "built", "verified", "timed", "when", "log"}


def with_hostile_names(value: Any) -> Any:
    """Add hostile text to every free text of a report."""
    if isinstance(value, str):
        return value and value + HOSTILE * (value not in ENGINE_CONTENDERS)  # else a baseline
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {
            field.name: with_hostile_names(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in FIXED
        }
        return dataclasses.replace(value, **changes)
    if isinstance(value, Mapping):
        return {
            with_hostile_names(key) if isinstance(key, str) else key: with_hostile_names(entry)
            for key, entry in value.items()
        }
    return tuple(map(with_hostile_names, value)) if isinstance(value, (list, tuple)) else value
