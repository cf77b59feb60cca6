"""A TensorRT engine under load: instances with their own streams, and energy by NVML."""

from pathlib import Path

from gpu_marks import TENSORRT_ON_GPU
from model_project import make_project

pytestmark = TENSORRT_ON_GPU


def test_instances_and_batches_of_tensorrt_are_measured_with_their_energy(tmp_path: Path) -> None:
    load = {"p99": "50ms", "batches": [1, 8], "instances": [1, 4], "duration": "1s"}
    project = make_project(tmp_path, ["resnet18"], ["fp16"], baselines=[], load=load)
    ran = project.buildsys("build", "load:resnet18:trt-fp16")
    assert ran.returncode == 0, ran.stdout
    result = project.result("load", "resnet18", "trt-fp16")
    assert result["status"] == "passed", ran.stdout
    settings = {(own["batch"], own["instances"]): own for own in result["settings"]}
    assert settings.keys() == {(1, 1), (1, 4), (8, 1), (8, 4)}
    for setting in settings.values():
        assert setting["threads"] is setting["streams"] is None
        assert 0 < setting["capacity_per_s"] <= setting["max_per_s"], setting
        if result["energy"].startswith("NVML"):
            assert setting["joules"] > 0
    # a batch of 8 is more work than one item, and less than eight
    most = {key: setting["max_per_s"] for key, setting in settings.items()}
    assert most[8, 1] < most[1, 1] < 8 * most[8, 1]
