"""Engines that get new weights on a GPU, and how much faster than a build.

The interpreter that has TensorRT is this one, or that of BUILDSYS_TEST_TOOLCHAIN=/path/to/python.
"""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from gpu_marks import TENSORRT_ON_GPU
from model_project import ModelProject, make_project
from tensorrt_jobs import build, convolutions, error_of, image
from toolchain import Toolchain

pytestmark = [*TENSORRT_ON_GPU, pytest.mark.timeout(1800)]
ENGINE = "trt-fp32"
TIMES_FASTER = 5


def recorded(folder: Path, facts: dict[str, Any]) -> tuple[Path, Path]:
    """Return an engine and its result, as the engine stage writes it."""
    (engine,) = folder.glob("*.engine")
    digest = hashlib.sha256(engine.read_bytes()).hexdigest()
    header = {"engine_sha256": digest, "started": "2026-01-01T00:00:00Z", "build_seconds": 9.0}
    result = folder / "engine.json"
    result.write_text(json.dumps({**facts, **header}))
    return engine, result


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_refitted_engine_computes_with_the_new_weights(
    toolchain: Toolchain, tmp_path: Path, precision: str
) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    fields: dict[str, Any] = {"precision": precision, "refit": True, "precision_share": 0}
    if precision == "fp16" and int(toolchain.version.split(".")[0]) >= 11:
        pytest.skip("strongly typed: the graph of this test is fp32")
    facts = build(toolchain, folders[0], **fields)
    for seed, (before, folder) in enumerate(pairwise(folders), start=1):
        earlier = [recorded(before, facts)]
        facts = build(toolchain, folder, convolutions(10 * seed), earlier=earlier, **fields)
        assert "refitted_from" in facts, facts.get("not_refitted")
        assert error_of(toolchain, folder, image(2)) <= 1e-2
        named = {node for layer in facts["layer_nodes"] for node in layer["nodes"]}
        assert named >= {f"/{kind}{number}" for kind in ("conv", "relu") for number in range(5)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> ModelProject:
    return make_project(tmp_path_factory.mktemp("refit"), ["resnet50"], ["fp32"])


def test_resnet50_gets_new_weights_much_faster_than_by_a_build(project: ModelProject) -> None:
    manifest = project.root / "configs/models/resnet50.yaml"
    seconds = []
    for seed in (0, 1):
        content = yaml.safe_load(manifest.read_text(encoding="utf-8"))
        content["source"]["seed"] = seed
        content["engines"][0]["refit"] = True
        manifest.write_text(yaml.safe_dump(content), encoding="utf-8")
        ran = project.doit(f"verify:resnet50:{ENGINE}")
        assert ran.returncode == 0, ran.stdout
        engine, verified = (project.result(s, "resnet50", ENGINE) for s in ("engine", "verify"))
        assert (engine["status"], verified["status"]) == ("passed", "passed"), ran.stdout
        seconds.append(engine["build_seconds"])
    assert "refitted_from" in engine, engine.get("not_refitted")
    print(f"\nbuild {seconds[0]:.2f} s, refit {seconds[1]:.2f} s, {engine['phases']}")
    assert seconds[0] >= TIMES_FASTER * seconds[1]
    explained = project.buildsys("explain", f"engine:resnet50:{ENGINE}").stdout
    assert "; refitted from the engine " in explained
