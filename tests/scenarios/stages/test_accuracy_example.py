"""The example of docs/accuracy.md: trained, built and evaluated, with good and bad calibration."""

import json
import shutil
import subprocess
import sys
from typing import Any

from project_folder import REPOSITORY, TIMEOUT_S, ProjectFolder
from ready_project import TorchProject

EXAMPLE = REPOSITORY / "docs/examples/accuracy"
WIDE_LIMITS = (
    "verify: {int8: {rtol: 100, cosine: -1, class_agreement: 0, correlation: -1, "
    "spread_error: 100, slope: 100, channel_error: 100}}\n"
)
DARK = """from networks.digits import examples

def dark(shape, dtype, which, seed):
    return examples(shape, dtype, which, seed) / 50
"""


def result(project: ProjectFolder, model: str, engine: str) -> dict[str, Any]:
    path = project.root / f"build/{model}/evaluate/{engine}.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def test_good_engines_pass_and_bad_calibration_fails_by_the_metric_alone(
    empty_place: TorchProject,
) -> None:
    example, root = empty_place, empty_place.root
    ignored = shutil.ignore_patterns("*.pt", "build", ".buildsys")
    shutil.copytree(EXAMPLE, root, dirs_exist_ok=True, ignore=ignored)
    train = [sys.executable, "train.py", "digits", "shapes"]
    subprocess.run(train, cwd=root, check=True, timeout=TIMEOUT_S)
    assert sum(file.stat().st_size for file in root.glob("weights/*.pt")) <= 1_000_000
    (root / "networks/dark.py").write_text(DARK)
    data = "{data: {image: {python: networks/dark.py:dark}}, batches: 4}\n" + WIDE_LIMITS
    example.edit("configs/models/digits.yaml", "{batches: 4}\n", data)

    engines = ("digits:ort-cpu", "digits:ort-int8", "shapes:ort-int8")
    targets = [f"evaluate:{engine}" for engine in engines]
    done = example.buildsys("build", "--continue", *targets, "export:requests")
    assert done.code != 0
    assert {targets[0], targets[2], "verify:digits:ort-int8"} <= {*done.passed}, done.out + done.err
    assert "the engine ort-int8 of digits: top-1 loses" in done.out
    assert "1.0 % is allowed" in done.out
    assert "calibrate on data like these" in done.out
    assert "weights/requests.pt is not made yet: run `python train.py`" in done.out
    good, bad, boxes = (result(example, *engine.split(":")) for engine in engines)
    assert (good["title"], good["verdict"]) == ("top-1", "passed")
    assert (boxes["title"], boxes["verdict"]) == ("mAP 50-95", "passed")
    assert good["original"] > 0.85
    assert boxes["original"] > 0.7
    assert bad["verdict"] == "failed"
    assert bad["low"] > 0.5
