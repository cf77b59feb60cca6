"""The shipped model with a TensorRT plugin in Python, built by doit."""

import json
import shutil

import pytest
from project_folder import REPOSITORY, ProjectFolder

pytest.importorskip("tensorrt_rtx")

PLUGIN = "plugins/ops/scaled_clip_plugin.py"
ENGINES = {"engine:clipped_signal:rtx-fp32", "engine:clipped_signal:rtx-fp16"}


def test_it_is_built_and_a_wrong_plugin_fails_its_engines_alone(project: ProjectFolder) -> None:
    root = project.root
    for folder in ("configs", "plugins"):
        shutil.copytree(REPOSITORY / folder, root / folder, dirs_exist_ok=True)
    for manifest in (root / "configs/models").glob("*.yaml"):
        if manifest.stem != "clipped_signal":
            manifest.unlink()
    project.edit("configs/models/clipped_signal.yaml", ", trt-fp32", "")
    with (root / "configs/models/clipped_signal.yaml").open("a") as manifest:
        manifest.write(
            "bench: {duration: 5ms, warmup: 1ms, baselines: [], noise: null, cold_start: 0}\n"
        )
    built = project.doit("build:clipped_signal")
    assert built.code == 0, built.out
    stages = ("export", "simplify", "validate", "report")
    on_cpu = {f"{stage}:clipped_signal:ort-cpu" for stage in ("engine", "verify")}
    assert {f"{stage}:clipped_signal" for stage in stages} | on_cpu | ENGINES <= built.passed
    for engine in ("rtx-fp32", "rtx-fp16"):
        result = json.loads(
            (project.root / f"build/clipped_signal/engine/{engine}/engine.json").read_text()
        )
        assert result["layers"]["plugin_v3"] == 2  # the local function was taken out
        assert [plugin["operator"] for plugin in result["plugins"]] == ["mydomain::ScaledClip"]

    project.edit(PLUGIN, "(self.low, self.high))", "self.bounds)")  # in clone
    failed = project.doit("-c", "build:clipped_signal")
    assert failed.code == 2
    assert failed.ran == ENGINES
    error = "AttributeError: 'ScaledClip' object has no attribute 'bounds'"
    sentence = f"{PLUGIN}: plugin ScaledClip: clone() raised {error}"
    lines = [line for line in failed.out.splitlines() if sentence in line]
    assert {line.split()[1] for line in lines} == ENGINES

    project.edit(PLUGIN, "self.bounds)", "(self.low, self.high))")
    again = project.doit("build:clipped_signal")
    assert again.code == 0, again.out
    assert again.ran == again.restored == {"report:clipped_signal"}  # it had reported the failure
