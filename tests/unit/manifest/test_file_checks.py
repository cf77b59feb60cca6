"""Errors in files named by a manifest."""

from __future__ import annotations

import hashlib

import pytest

NET = "configs/models/net.yaml"

PYTHON = """\
model: net
source: {{python: "{callable}"}}
inputs: {{x: {{shape: [1]}}}}
"""


@pytest.mark.parametrize(
    "source",
    [
        "def make(): ...",
        "class make: ...",
        "make = print",
        "from json import loads as make",
        "from json import *",
        "if True:\n    make = 1",
        "try:\n    import make\nexcept ImportError:\n    make = None",
        "def __getattr__(name): ...",
        "first, make = 1, 2",
    ],
)
def test_every_form_of_definition_is_found(project, source):
    project.write("plugins/net.py", source)
    project.write(NET, PYTHON.format(callable="plugins/net.py:make"))
    assert list(project.load().models) == ["net"]


def test_weights_with_another_digest(project):
    weights = project.write("weights/net.pth", b"some weights")
    right, wrong = hashlib.sha256(weights.read_bytes()).hexdigest(), "f" * 64
    manifest = (
        "model: net\n"
        "source: {{torchvision: resnet18, weights: {{file: {}, sha256: {}}}}}\n"
        "inputs: {{x: {{shape: [1]}}}}\n"
    )
    project.write(NET, manifest.format("weights/net.pth", right))
    assert project.load().models["net"].data["source"]["weights"] == {
        "file": "weights/net.pth",
        "sha256": right,
    }
    project.write(NET, manifest.format("weights/net.pth", wrong))
    [error] = project.errors()
    assert error.startswith(f"{NET}:2:")
    assert f"source.weights.sha256: the SHA-256 digest of weights/net.pth is {right}" in error
    project.write(NET, manifest.format("weights/gone.pth", wrong))
    assert "source.weights.file: file weights/gone.pth does not exist" in project.errors()[0]
    project.write(NET, manifest.format("weights/net.pth", "abc"))
    assert "source.weights.sha256: expected a SHA-256 digest" in project.errors()[0]
