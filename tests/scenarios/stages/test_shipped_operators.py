"""The shipped models with custom operators, built through doit."""

import shutil
from pathlib import Path

import pytest
from project_folder import REPOSITORY, ProjectFolder

MODELS = (
    "clamp_swish",
    "clamp_swish_library",
    "clamp_swish_dynamo",
    "deform_conv",
    "deform_conv_decomposed",
)
RTX = {
    "clamp_swish": "rtx-fp16",
    "clamp_swish_library": "rtx-fp16",
    "clamp_swish_dynamo": "rtx-fp16",
}


@pytest.fixture(scope="module")
def project(module_place: ProjectFolder) -> ProjectFolder:
    made = module_place
    made.create()
    shutil.copytree(REPOSITORY / "plugins", made.root / "plugins", dirs_exist_ok=True)
    for model in MODELS:
        shutil.copy(REPOSITORY / f"configs/models/{model}.yaml", made.root / "configs/models")
    for name in ("engines.yaml", "project.yaml"):
        shutil.copy(REPOSITORY / "configs" / name, made.root / "configs")
    made.edit("configs/project.yaml", ", trt-fp32, trt-fp16", "")  # deform_conv has its own
    made.edit(
        "configs/project.yaml",
        "defaults:\n",
        "defaults:\n  bench: {duration: 5ms, warmup: 1ms, baselines: [], noise: null}\n",
    )
    return made


def test_each_builds_and_agrees_with_pytorch(project: ProjectFolder) -> None:
    done = project.doit("-n", "2", "build")
    assert done.code == 0, done.err
    for model in MODELS:
        rtx = RTX.get(model, "rtx-fp32")
        stages = ("operators", "export", "simplify", "validate", "report")
        engines = {f"engine:{model}:ort-cpu", f"verify:{model}:ort-cpu", f"engine:{model}:{rtx}"}
        assert {f"{stage}:{model}" for stage in stages} | engines <= done.passed, (model, done.out)


def test_a_comment_in_a_function_stops_where_the_bytes_are_the_same(project: ProjectFolder) -> None:
    file: Path = project.root / "plugins/ops/clamp_swish.py"
    file.write_text(f"{file.read_text()}\n# a comment\n")
    done = project.doit("build")
    assert done.ran == {
        f"{stage}:{model}"
        for model in MODELS
        if "clamp" in model
        for stage in ("operators", "report")
    }, done.out
