"""The shipped models with custom operators, built through doit."""

import shutil

from project_folder import REPOSITORY, ProjectFolder

MODELS = {  # name -> its engine of TensorRT-RTX
    "clamp_swish": "rtx-fp16",
    "clamp_swish_library": "rtx-fp16",
    "clamp_swish_dynamo": "rtx-fp16",
    "deform_conv": "rtx-fp32",
    "deform_conv_decomposed": "rtx-fp32",
}
BENCH = "  bench: {duration: 5ms, warmup: 1ms, baselines: [], noise: null, cold_start: 0}\n"


def test_each_builds_and_agrees_with_pytorch(project: ProjectFolder) -> None:
    shutil.copytree(REPOSITORY / "plugins", project.root / "plugins", dirs_exist_ok=True)
    for name in (*(f"models/{model}" for model in MODELS), "engines", "project"):
        shutil.copy(REPOSITORY / f"configs/{name}.yaml", project.root / f"configs/{name}.yaml")
    project.edit("configs/project.yaml", ", trt-fp32, trt-fp16", "")  # deform_conv has its own
    project.edit("configs/project.yaml", "defaults:\n", f"defaults:\n{BENCH}")
    done = project.doit("-n", "2", "build")
    assert done.code == 0, done.err
    for model, rtx in MODELS.items():
        stages = ("operators", "export", "simplify", "validate", "report")
        engines = {f"engine:{model}:ort-cpu", f"verify:{model}:ort-cpu", f"engine:{model}:{rtx}"}
        assert {f"{stage}:{model}" for stage in stages} | engines <= done.passed, (model, done.out)
