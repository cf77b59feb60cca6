"""Exports that a build tries after a failure, and `buildsys new` for a new model."""

from __future__ import annotations

from typing import Any

NEWEST_TORCHSCRIPT_OPSET = 23  # the exporter raises from 24 on
OLDEST_DYNAMO_OPSET = 18  # it writes no lower one, and converts only some graphs down


def export_change(**options: Any) -> str:
    """Write options of the export as YAML."""
    return f"export: {{{', '.join(f'{name}: {value}' for name, value in options.items())}}}"


OTHER_EXPORTS = (
    export_change(exporter="dynamo", opset=18),
    export_change(exporter="dynamo", opset=23),
    export_change(exporter="torchscript", opset=20),
)
