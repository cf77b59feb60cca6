"""Images for an engine, compared with the transforms of torchvision's trained weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buildsys.errors import StageError
from buildsys.models.images import read_images
from buildsys.stages.reference.likely_inputs import training_of
from buildsys.stages.run.inputs import categories

FIELDS: dict[str, Any] = {
    "resize": 256, "pad": None, "interpolation": "bilinear", "color": "rgb", "layout": "nchw",
    "divide": 255.0, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225),
}  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "changes"),
    [
        ("ResNet18_Weights.IMAGENET1K_V1", {}),
        ("Swin_T_Weights.IMAGENET1K_V1", {"resize": 232, "interpolation": "bicubic"}),
    ],
)
@pytest.mark.parametrize("size", [(301, 467), (640, 481), (40, 47), (256, 256)])
def test_an_image_equals_that_of_the_weights_bit_by_bit(
    tmp_path: Path, weights: str, changes: dict[str, Any], size: tuple[int, int]
) -> None:
    from torchvision.models import get_weight  # two seconds, so not at collection

    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    file = tmp_path / "photo.png"
    Image.fromarray(pixels).save(file)
    found = read_images([file], {**FIELDS, **changes}, "x", (1, 3, 224, 224), "float32").array
    with Image.open(file) as image:
        expected = get_weight(weights).transforms()(image).numpy()
    assert np.array_equal(found[0], expected)


def test_categories_come_from_weights_without_their_file() -> None:
    assert categories("ResNet50_Weights.IMAGENET1K_V2")[258] == "Samoyed"
    for name, message in (
        (
            "ResNet50_Weight.V1",
            "torchvision has no weights ResNet50_Weight.V1; torchvision.models lists",
        ),
        ("ResNet50_Weights.V1", "torchvision has no weights ResNet50_Weights.V1"),
        ("Raft_Small_Weights.C_T_V1", "Raft_Small_Weights.C_T_V1 has no categories; name the"),
    ):
        with pytest.raises(StageError) as error:
            categories(name)
        assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "size", "fields"),
    [
        ("swin_t", 224, {"resize": 232, "interpolation": "bicubic"}),
        ("efficientnet_v2_s", 384, {"resize": 384}),
        ("fasterrcnn_resnet50_fpn", None, {}),
        ("raft_small", None, {}),
    ],
)
def test_the_training_of_weights_in_torchvision(name: str, size: int | None, fields: Any) -> None:
    training = training_of(name)
    assert (training and training.size) == size
    assert training is None or fields.items() <= training.preprocess.items()
