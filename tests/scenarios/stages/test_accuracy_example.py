"""The example of docs/accuracy.md: trained, built and evaluated, with good and bad calibration."""

import shutil

from accuracy_example import EXAMPLE, evaluated, spoil_calibration, train
from ready_project import TorchProject


def test_good_engines_pass_and_bad_calibration_fails_by_the_metric_alone(
    empty_place: TorchProject,
) -> None:
    example, root = empty_place, empty_place.root
    ignored = shutil.ignore_patterns("*.pt", "build", ".buildsys")
    shutil.copytree(EXAMPLE, root, dirs_exist_ok=True, ignore=ignored)
    train(example, "digits", "shapes")
    assert sum(file.stat().st_size for file in root.glob("weights/*.pt")) <= 1_000_000
    spoil_calibration(example)

    engines = ("digits:ort-cpu", "digits:ort-int8", "shapes:ort-int8")
    targets = [f"evaluate:{engine}" for engine in engines]
    done = example.buildsys("build", "--continue", *targets, "export:requests")
    assert done.code != 0
    assert {targets[0], targets[2], "verify:digits:ort-int8"} <= {*done.passed}, done.out + done.err
    assert "the engine ort-int8 of digits: top-1 loses" in done.out
    assert "1.0 % is allowed" in done.out
    assert "calibrate on data like these" in done.out
    assert "weights/requests.pt is not made yet: run `python train.py`" in done.out
    good, bad, boxes = (evaluated(example, *engine.split(":")) for engine in engines)
    assert (good["title"], good["verdict"]) == ("top-1", "passed")
    assert (boxes["title"], boxes["verdict"]) == ("mAP 50-95", "passed")
    assert good["original"] > 0.85
    assert boxes["original"] > 0.7
    assert bad["verdict"] == "failed"
    assert bad["low"] > 0.5
