"""Equal bytes in another process, in another folder and after an irrelevant edit."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
import torch
from export_elsewhere import PROGRAM, export_models
from onnx import helper
from small_graphs import conv_bn
from stage_jobs import ROOT

from buildsys.stages.export.origins import strip_traces

SUPPORT = ROOT / "tests" / "integration"
MODELS = {  # shipped model and export section
    "conv_bn_relu-torchscript": ("conv_bn_relu", "{opset: 17}"),
    "flatten_head-dynamo": ("flatten_head", "{exporter: dynamo, opset: 18, external_data: true}" ),
}  # fmt: skip


def make_project(root: Path) -> Path:
    """Write the shipped small models, with both exporters, into a new project."""
    shutil.copytree(
        ROOT / "plugins", root / "plugins", ignore=shutil.ignore_patterns("__pycache__")
    )
    (root / "configs/models").mkdir(parents=True)
    shutil.copy(ROOT / "configs/engines.yaml", root / "configs")
    for model, (name, export) in MODELS.items():
        text = (ROOT / f"configs/models/{name}.yaml").read_text()
        text = re.sub(r"^(export|model|engines):.*\n", "", text, flags=re.MULTILINE)
        (root / f"configs/models/{model}.yaml").write_text(
            f"model: {model}\nexport: {export}\nengines: [ort-cpu]\n{text}"
        )
    return root


@pytest.fixture(scope="module")
def builds(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, str], dict[str, str]]:
    """Return the project, the files built here, and those built elsewhere."""
    root = make_project(tmp_path_factory.mktemp("one") / "p")
    other = tmp_path_factory.mktemp("two") / "a-longer-name" / "of-a-checkout"
    models = change_irrelevantly(make_project(other))
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "4242",
        "OMP_NUM_THREADS": str(torch.get_num_threads() + 1),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(SUPPORT)]),
    }
    command = [sys.executable, "-c", PROGRAM, other, other / "build", *models]
    with (
        (other / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=other) as process,
    ):  # at the same time as this one
        here = export_models(root, root / "build", list(MODELS))
    assert process.returncode == 0, (other / "log").read_text()
    there: dict[str, str] = json.loads((other / "build/digests.json").read_text(encoding="utf-8"))
    return root, here, there


def change_irrelevantly(root: Path) -> list[str]:
    """Move code and edit manifests; return all models in another order."""
    for file in (root / "plugins/models").glob("*.py"):
        file.write_text(f'# a comment\n\n{file.read_text()}\n\nLAST = "unused"\n')
    moved = root / "plugins/networks/deeper"
    moved.mkdir(parents=True)
    shutil.copy(root / "plugins/models/conv_blocks.py", moved / "blocks.py")
    for model in MODELS:
        manifest = (root / f"configs/models/{model}.yaml").read_text()
        edited = manifest.replace(
            "plugins/models/conv_blocks.py", "plugins/networks/deeper/blocks.py"
        ).replace(f"model: {model}", f"model: moved-{model}")
        assert edited.count("deeper") == edited.count("moved") == 1
        (root / f"configs/models/moved-{model}.yaml").write_text(edited)
    manifest = (root / "configs/models/conv_bn_relu-torchscript.yaml").read_text()
    edited = manifest.replace(
        "{inputs: 3, outputs: 16, kernel: 3}", "{kernel: 3, outputs: 16, inputs: 3}"
    ).replace("model: conv_bn_relu-torchscript", "model: reordered")
    assert edited.count("{kernel: 3,") == edited.count("reordered") == 1
    sections = re.split(r"^(?=\w)", edited, flags=re.MULTILINE)
    (root / "configs/models/reordered.yaml").write_text(
        "".join(section.rstrip("\n") + "\n" for section in reversed(sections))
    )
    models = [*MODELS, "reordered", *(f"moved-{model}" for model in MODELS)]
    return models[::-1]


def files_of(model: str, digests: dict[str, str]) -> dict[str, str]:
    """Return file -> digest of one model."""
    prefix = f"{model}/"
    return {
        path.removeprefix(prefix): digest
        for path, digest in digests.items()
        if path.startswith(prefix)
    }


def test_equal_networks_give_equal_bytes(
    builds: tuple[Path, dict[str, str], dict[str, str]],
) -> None:
    """In two processes and folders, with a moved plugin and reordered keys of a manifest."""
    root, here, there = builds
    for model in MODELS:
        files = files_of(model, here)
        assert {"export/model.onnx", "simplify/model.onnx"} <= files.keys()
        assert files == files_of(model, there) == files_of(f"moved-{model}", there)
    assert files_of("reordered", there) == files_of("conv_bn_relu-torchscript", here)
    assert "flatten_head-dynamo/export/model.onnx.data" in here
    assert files_of("m", here).keys() == {"program/program.pt2"}
    assert files_of("m", here) == files_of("m", there)
    assert str(ROOT).encode() not in (root / "build/m/program/program.pt2").read_bytes()


def test_files_do_not_contain_their_origin(
    builds: tuple[Path, dict[str, str], dict[str, str]],
) -> None:
    root, files, _ = builds
    for path in (path for path in files if "program" not in path):
        content = (root / "build" / path).read_bytes()
        assert str(root).encode() not in content, path
        assert b".py" not in content, path
        if path.endswith(".onnx"):
            model = onnx.load_model_from_string(content)
            assert model.producer_version == "", path
            assert not any(node.metadata_props for node in model.graph.node), path


def test_metadata_set_by_people_stays() -> None:
    model = conv_bn()
    model.doc_string = "for the north gate"
    helper.set_model_props(model, {"classes": "cat,dog"})
    model.graph.node[0].metadata_props.add(key="owner", value="vision")
    model.graph.node[0].metadata_props.add(
        key="pkg.torch.onnx.stack_trace", value='File "/home/me/x.py", line 3'
    )
    model.graph.initializer[0].doc_string = "from /home/me/w.pth"
    strip_traces(model)
    assert model.doc_string == "for the north gate"
    assert {entry.key: entry.value for entry in model.metadata_props} == {"classes": "cat,dog"}
    assert [entry.key for entry in model.graph.node[0].metadata_props] == ["owner"]
