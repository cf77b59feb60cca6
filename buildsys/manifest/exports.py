"""Changes of a manifest that a build tries after a failure, and `buildsys new` for a new model."""

from typing import Any

NEWEST_TORCHSCRIPT_OPSET = 23  # the exporter raises from 24 on
OLDEST_DYNAMO_OPSET = 18  # it writes no lower one, and leaves it in graphs that it cannot convert


def export_change(**options: Any) -> str:
    """Write options of the export as YAML."""
    return f"export: {{{', '.join(f'{name}: {value}' for name, value in options.items())}}}"


_DYNAMO = export_change(exporter="dynamo", opset=18)
OTHER_EXPORTS = (
    _DYNAMO,
    export_change(exporter="dynamo", opset=23),
    export_change(exporter="torchscript", opset=20),
)
KEEP_GRAPH = ("simplify: {tool: none}",)
# of new models: first the usual opsets
NEW_EXPORTS = (_DYNAMO, export_change(exporter="torchscript", opset=17), *OTHER_EXPORTS[1:])
