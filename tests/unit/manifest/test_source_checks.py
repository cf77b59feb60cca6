"""Errors in the sources of libraries."""

from __future__ import annotations

import pytest

NET = "configs/models/net.yaml"
MANIFEST = "model: net\nsource: {{{source}}}\ninputs: {{x: {{shape: [1]}}}}\n"


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
        ("onnx: w.pth, kwargs: {size: 3}", "source.kwargs: a file takes no arguments; remove it"),
        ("onnx: graph.py:mak", "graph.py does not define mak; did you mean make?"),
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
