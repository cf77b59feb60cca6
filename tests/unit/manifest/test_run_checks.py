"""Errors in the preprocessing of inputs and the labels of outputs, with their positions."""

from __future__ import annotations

import re

import pytest
from manifest_files import ProjectFolder

INPUTS = [
    ("resize: 256, crop: 224", "inputs.x.preprocess.crop: unknown field"),
    ("resize: 0", "inputs.x.preprocess.resize: expected at least 1, found 0"),
    (
        "interpolation: bilinea",
        'inputs.x.preprocess.interpolation: unknown value "bilinea"; did you mean bilinear?',
    ),
    ("std: [0.2, 0, 0.2]", "inputs.x.preprocess.std.1: expected more than 0, found 0"),
    (
        "mean: [0.5, 0.5]",
        "inputs.x.preprocess.mean: 2 values for 3 channels; give one value, or one per channel",
    ),
    (
        "layout: nhwc",
        "inputs.x.preprocess: the shape [batch, 3, 32, 32] does not fit rgb images in layout nhwc;"
        " expected [batch, height, width, channels] or [height, width, channels] with 3 channels",
    ),
    (
        "color: gray",
        "inputs.x.preprocess: the shape [batch, 3, 32, 32] does not fit gray images in layout nchw;"
        " expected [batch, channels, height, width] or [channels, height, width] with 1 channels",
    ),
    (
        "resize: 40, pad: 114",
        "inputs.x.preprocess.pad: an image is either padded or cropped; remove pad or resize",
    ),
    ("pad: 256", "inputs.x.preprocess.pad: expected at most 255, found 256"),
]
LABELS = [
    (
        "y: {labels: names.txt}",
        'outputs.y.labels: expected a map, found "names.txt"',
    ),
    (
        "y: {labels: {softmax: true}}",
        "outputs.y.labels: expected one of the fields file, torchvision, names",
    ),
    (
        "y: {labels: {file: labels/none.txt}}",
        "outputs.y.labels.file: file labels/none.txt does not exist; paths are relative to the "
        "project",
    ),
    (
        "y: {labels: {torchvision: resnet18}}",
        "outputs.y.labels.torchvision: expected weights of torchvision such as "
        'ResNet50_Weights.IMAGENET1K_V2, found "resnet18"',
    ),
    (
        "y: {shape: [batch, 3], labels: {names: [cat, dog]}}",
        "outputs.y.labels.names: 2 names for the 3 classes of the output; name each class once",
    ),
    ("y: {labels: {names: []}}", "outputs.y.labels.names: expected at least 1 entry"),
    (
        "y: {labels: {names: [cat], activation: soft}}",
        'outputs.y.labels.activation: unknown value "soft"; did you mean softmax?',
    ),
]


@pytest.mark.parametrize(("section", "problem"), [
    *((f"inputs: {{x: {{shape: [batch, 3, 32, 32], preprocess: {{{f}}}}}}}", p) for f, p in INPUTS),
    *((f"outputs: {{{outputs}}}", problem) for outputs, problem in LABELS),
])  # fmt: skip
def test_a_mistake_is_located(project: ProjectFolder, section: str, problem: str) -> None:
    file = project.model()
    kept = re.sub(r"inputs:\n.*\n", "", file.read_text()) if section[0] == "i" else file.read_text()
    file.write_text(f"{kept}{section}\n")
    located = [line for line in project.errors() if re.match(r"\S+:\d+:\d+: ", line)]
    assert len(located) == 1, located
    assert problem in located[0]


def test_images_cannot_become_integers(project: ProjectFolder) -> None:
    project.model("outputs: {y: {}}\n")
    file = project.root / "configs/models/net.yaml"
    wrong = "32, 32], dtype: int64, preprocess: {}}"
    file.write_text(file.read_text().replace("32, 32]}", wrong))
    assert (
        "inputs.x.preprocess: cannot convert images to dtype int64; supported: float32"
        in (project.errors()[0])
    )


def test_preprocessing_and_labels_have_defaults(project: ProjectFolder) -> None:
    project.write("labels.txt", "cat\ndog\n")
    file = project.model("outputs: {y: {labels: {file: labels.txt}}}\n")
    file.write_text(file.read_text().replace("32, 32]}", "32, 32], preprocess: {resize: 40}}"))
    data = project.load().models["net"].data
    assert data["inputs"]["x"]["preprocess"] == {
        "resize": 40, "pad": None, "interpolation": "bilinear", "color": "rgb", "layout": "nchw",
        "divide": 255.0, "mean": [0.0], "std": [1.0],
    }  # fmt: skip
    assert data["outputs"]["y"]["labels"] == {"file": "labels.txt", "activation": "softmax"}
