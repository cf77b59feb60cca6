"""Errors in the sources of libraries."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
COMMIT = "0123456789" * 4
MANIFEST = "model: net\nsource: {{{source}}}\ninputs: {{x: {{shape: [1]}}}}\n"


@pytest.mark.parametrize(
    "source",
    [
        f'timm: resnet18, weights: {{file: "hf://timm/resnet18.a1_in1k@{COMMIT}/model.pth"}}',
        f'transformers: AutoModel, checkpoint: "hf://a/b@{COMMIT}"',
    ],
)
def test_a_commit_of_the_hub_is_accepted(project, source):
    project.write(NET, MANIFEST.format(source=source))
    assert project.load().models["net"].data["source"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "timm: resnet18, kwargs: {pretrained: true}",
            "2:35: source.kwargs.pretrained: pretrained loads what the key does not have; "
            "name a file under source.weights",
        ),
        (
            "transformers: AutoModel, config: {}, kwargs: {trust_remote_code: true}",
            "source.kwargs.trust_remote_code: trust_remote_code loads what the key does not have",
        ),
        ("transformers: AutoModel", "a transformers source has either checkpoint or config"),
        (
            "transformers: AutoModel, checkpoint: bert/, config: {}",
            "a transformers source has either checkpoint or config",
        ),
        (
            "transformers: AutoModel, checkpoint: bert/, weights: {file: w.pth}",
            "source: weights replace those of a checkpoint; name its config.json in config",
        ),
        ("transformers: AutoModel, checkpoint: brt/", "folder brt/ does not exist"),
        ("transformers: AutoModel, checkpoint: ../bert", '"../bert" leaves the project'),
        ("transformers: AutoModel, config: x.json", "source.config: file x.json does not exist"),
        (
            "transformers: AutoModel, config: 5",
            "source.config: expected a map of configuration fields, or a file, found 5",
        ),
        (
            'timm: resnet18, weights: {file: "hf://timm/resnet18@main/model.safetensors"}',
            'source.weights.file: expected hf://OWNER/NAME@COMMIT/FILE, found "hf://timm/resnet18@'
            'main/model.safetensors"; a commit has 40 hexadecimal digits; a branch or tag may move',
        ),
        (
            f'transformers: AutoModel, checkpoint: "hf://a/b@{COMMIT}/config.json"',
            "source.checkpoint: expected hf://OWNER/NAME@COMMIT, found",
        ),
        (
            f'timm: resnet18, weights: {{file: "hf://a/b@{COMMIT}/../c.pth"}}',
            "expected hf://OWNER/NAME@COMMIT/FILE, found",
        ),
        (
            "exported_program: w.pth}\nexport: {exporter: dynamo, opset: 18",
            "source.exported_program: torch can run code of w.pth when it loads the file; if you "
            "trust its author, write trusted: true beside it",
        ),
        (
            "exported_program: w.pth, trusted: true",
            "export.exporter: the torchscript exporter would fix the dynamic sizes of a saved "
            "program; write export: {exporter: dynamo, opset: 18}",
        ),
        ("onnx: w.pth, kwargs: {size: 3}", "source.kwargs: a file takes no arguments; remove it"),
        ("onnx: graph.py:mak", "graph.py does not define mak; did you mean make?"),
        ("timm: resnet18, device: gpu", 'source.device: unknown value "gpu"; did you mean cpu?'),
        ("onnx: w.pth, device: cuda", "source.device: unknown field"),
        ("onnx: grap.py:make", "file grap.py does not exist; did you mean graph.py?"),
        ("tim: resnet18", "expected one of the fields torchvision, timm, transformers"),
    ],
)
def test_a_wrong_source_is_one_sentence(project, source, expected):
    project.write("w.pth", b"weights")
    project.write("graph.py", "def make(): ...")
    (project.root / "bert").mkdir()
    project.write(NET, MANIFEST.format(source=source))
    [error] = project.errors()
    assert expected in error
