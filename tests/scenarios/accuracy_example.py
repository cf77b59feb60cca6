"""The example of docs/accuracy.md in a project: training, bad calibration, results."""

import json
import subprocess
import sys
from typing import Any

from project_folder import REPOSITORY, TIMEOUT_S, ProjectFolder

EXAMPLE = REPOSITORY / "docs/examples/accuracy"
_WIDE_LIMITS = (
    "verify: {int8: {rtol: 100, cosine: -1, class_agreement: 0, correlation: -1, "
    "spread_error: 100, slope: 100, channel_error: 100}}\n"
)
_DARK = """from networks.digits import examples

def dark(shape, dtype, which, seed):
    return examples(shape, dtype, which, seed) / 50
"""


def train(project: ProjectFolder, *names: str) -> None:
    """Write the weights of networks."""
    command = [sys.executable, "train.py", *names]
    subprocess.run(command, cwd=project.root, check=True, timeout=TIMEOUT_S)


def spoil_calibration(project: ProjectFolder) -> None:
    """Calibrate digits on values up to 0.02, with limits so wide that its tensors pass."""
    (project.root / "networks/dark.py").write_text(_DARK)
    data = "{data: {image: {python: networks/dark.py:dark}}, batches: 4}\n" + _WIDE_LIMITS
    project.edit("configs/models/digits.yaml", "{batches: 4}\n", data)


def evaluated(project: ProjectFolder, model: str, engine: str) -> dict[str, Any]:
    """Return the result of an evaluation."""
    path = project.root / f"build/{model}/evaluate/{engine}.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content
