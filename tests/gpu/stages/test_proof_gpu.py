"""Complete runs of doit with TensorRT on a GPU.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
"""

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from gpu_marks import DRIVER, TENSORRT_ON_GPU
from model_project import ENGINE, gpu_project
from project_folder import ProjectFolder

from buildsys.manifest.value_ranges import VALUE_CASES

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(600)]
NETWORKS = """\
import torch


class Convolutions(torch.nn.Sequential):
    def __init__(self, channels=8):
        torch.manual_seed(0)
        first, last = torch.nn.Conv2d(3, channels, 3, padding=1), torch.nn.Conv2d(channels, 4, 3)
        layers = [first, torch.nn.ReLU(), last]
        super().__init__(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
"""


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    folder = gpu_project(tmp_path / "project")
    (folder.root / "plugins/models/nets.py").write_text(NETWORKS)
    return folder


CHANNELS = {"a": 8, "b": 24}


def model(project: ProjectFolder, name: str, *engines: dict[str, Any], channels: int = 8) -> None:
    """Write a manifest; JSON is YAML."""
    toolchain = {"toolchain": "gpu"} if os.environ.get("BUILDSYS_TEST_TOOLCHAIN") else {}
    source = {"python": "plugins/models/nets.py:Convolutions", "kwargs": {"channels": channels}}
    manifest = {
        "model": name, "source": source,
        "inputs": {"x": {"shape": ["batch", 3, 16, 16]}}, "outputs": {"y": {"shape": ["batch", 4]}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 16}},
        "engines": [
            {"name": f"trt{n or ''}", **ENGINE, **toolchain, **engine}
            for n, engine in enumerate(engines)
        ],
    }  # fmt: skip
    (project.root / f"configs/models/{name}.yaml").write_text(json.dumps(manifest))


def result(project: ProjectFolder, path: str) -> dict[str, Any]:
    return dict(json.loads((project.root / "build" / path).read_text()))


def profile(low: int, usual: int, high: int) -> dict[str, Any]:
    sizes = {"min": low, "opt": usual, "max": high}
    return {"x": {point: [batch, 3, 16, 16] for point, batch in sizes.items()}}


def test_every_profile_is_verified_at_its_own_sizes(project: ProjectFolder) -> None:
    profiles = [profile(1, 1, 1), profile(1, 6, 9)]
    model(project, "m", {"profiles": profiles, "tf32": False})
    ran = project.doit("verify:m:trt")
    assert ran.code == 0, ran.out
    found = result(project, "m/verify/trt.json")
    further = ("seed-", "drawn-", *VALUE_CASES)
    assert [
        {case for case in entry["cases"] if not case.startswith(further)}
        for entry in found["profiles"]
    ] == [{"min"}, {"min", "opt", "odd", "batch=6", "batch=9"}]
    assert all(
        outputs["y"]["passed"] for entry in found["profiles"] for outputs in entry["cases"].values()
    )
    assert found["outside_profiles"] == ["max"]
    assert "fit none of the engine's profiles" in found["warnings"][0]
    assert "max (batch 16)" in found["warnings"][0]


def test_a_tf32_engine_names_the_remedy_for_full_float32(project: ProjectFolder) -> None:
    model(project, "m", {"tolerance": {"rtol": 1e-6}}, channels=64)
    ran = project.doit("verify:m:trt")
    assert ran.code == 1, ran.out
    assert "the error is no larger than TF32 can cause: try tf32: false" in ran.out
    model(project, "m", {"tolerance": {"rtol": 1e-5}, "tf32": False}, channels=64)
    ran = project.doit("verify:m:trt")
    assert ran.code == 0, ran.out


def test_timings_are_shared(project: ProjectFolder) -> None:
    project.environment["CUDA_VISIBLE_DEVICES"] = "0"  # one GPU builds one engine at a time
    caches = project.root / ".buildsys/timing_caches"
    for name, channels in CHANNELS.items():
        model(project, name, {}, channels=channels)
    ran = project.doit("-n", "2", "engine:a:trt", "engine:b:trt")
    assert ran.code == 0, ran.out
    first = {
        name: result(project, f"{name}/engine/trt/engine.json")["timing_cache"] for name in "ab"
    }
    assert all(facts["added_bytes"] > 0 for facts in first.values())
    # the second build on the GPU began with the timings of the first
    assert sum("lent" in facts for facts in first.values()) == 1
    assert len(list(caches.glob("*.timing_cache"))) == 1

    for name in "ab":
        assert project.doit("forget", f"engine:{name}:trt").code == 0
        assert project.doit(f"engine:{name}:trt").code == 0
        again = result(project, f"{name}/engine/trt/engine.json")["timing_cache"]
        assert again["lent"], "the build begins with the timings of both"
        assert again["added_bytes"] == 0, f"timings of {name} have been lost"


@pytest.mark.parametrize("damage", ["truncated", "foreign", "not TensorRT's"])
def test_a_broken_timing_cache_costs_a_warning(project: ProjectFolder, damage: str) -> None:
    caches = project.root / ".buildsys/timing_caches"
    model(project, "m", {})
    assert project.doit("engine:m:trt").code == 0
    (path,) = caches.glob("*.timing_cache")
    stored = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(stored[: len(stored) // 2])
    elif damage == "foreign":
        path.write_bytes(stored.replace(DRIVER.gpus[0].name.encode(), b"NVIDIA Another GPU", 1))
    else:
        content = os.urandom(5000)
        header = json.loads(stored.partition(b"\n")[0]) | {"sha256": sha256(content).hexdigest()}
        path.write_bytes(json.dumps(header).encode() + b"\n" + content)
    project.doit("forget", "engine:m:trt")
    assert project.doit("engine:m:trt").code == 0
    record = result(project, "m/engine/trt/engine.json")
    assert any("timing cache" in message for message in record["messages"])
    assert record["timing_cache"]["digest"]
    project.doit("forget", "engine:m:trt")
    assert project.doit("engine:m:trt").code == 0
    assert not any(
        "timing cache" in message
        for message in result(project, "m/engine/trt/engine.json")["messages"]
    )


def test_the_record_and_the_doctor(project: ProjectFolder, tmp_path: Path) -> None:
    model(project, "m", {})
    assert project.doit("verify:m:trt", "validate:m").code == 0
    record = result(project, "m/engine/trt/engine.json")
    gpu = DRIVER.gpus[0]
    built = record["built_with"]
    assert (built["gpu"], built["compute_capability"]) == (gpu.name, gpu.compute_capability)
    assert built["driver"]
    assert built["cuda"]
    assert built["tensorrt"]
    assert record["device_memory_bytes"] >= 0
    assert record["precision_shares"]["layers"]
    assert record["phases"].keys() >= {"prepare", "build", "read_back"}
    shown = project.buildsys("doctor", "m:trt")
    assert (shown.code, "it can run here" in shown.out) == (0, True), shown.out

    copy = tmp_path / "elsewhere"
    shutil.copytree(project.root / "build/m/engine/trt", copy)
    for change, kind in (
        ({"compute_capability": "7.0"}, "compute capability"), ({"tensorrt": "9.9.9.9"}, "version"),
    ):  # fmt: skip
        edited = {**record, "built_with": {**built, **change}}
        (copy / "engine.json").write_text(json.dumps(edited))
        # asked in the interpreter of the project's engine: this one may have no TensorRT
        shutil.copy(copy / "engine.json", project.root / "build/m/engine/trt/engine.json")
        shown = project.buildsys("doctor", "m:trt", "--json")
        assert shown.code == 1
        kinds = [reason["kind"] for reason in json.loads(shown.out)["engines"][0]["reasons"]]
        assert kinds[:2] == [kind, "stale"]  # its record was edited by hand
