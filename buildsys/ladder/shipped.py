"""What is shipped in plugins/ for operators that exporters or backends lack; named where the project has the file."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Shipped(NamedTuple):
    """A registration or decomposition that a manifest can name as it is."""

    kind: str  # torchscript | dynamo: for an operator of torch; onnx: for an operator of the graph
    operator: str
    text: str
    yaml: tuple[str, ...]
    backends: tuple[str, ...] = ()  # kind onnx: those for which it helps

    @property
    def section(self) -> str:
        """Return the manifest's section that it goes to."""
        return self.yaml[0].partition(":")[0]

    @property
    def file(self) -> str:
        """Return the plugin file, relative to the project."""
        return f"plugins/{self.yaml[0].partition('plugins/')[2].partition('.py')[0]}.py"


SHIPPED = (
    Shipped(
        "torchscript",
        "aten::asinh",
        "a symbolic function that writes ONNX's own Asinh",
        ('symbolics: [{op: "aten::asinh", function: "plugins/symbolics/asinh.py:asinh", opset: 9}]',),
    ),
)


def files_of(project: Path) -> frozenset[str]:
    """Return those of the shipped plugin files that a project has."""
    return frozenset(shipped.file for shipped in SHIPPED if (project / shipped.file).is_file())
