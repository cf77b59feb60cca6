"""Image files as tensors, and files that are none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buildsys.errors import StageError
from buildsys.models.images import describe_images, read_images, size_of

FIELDS: dict[str, Any] = {
    "resize": None, "pad": None, "interpolation": "nearest", "color": "rgb", "layout": "nhwc",
    "divide": 1.0, "mean": (0.0,), "std": (1.0,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(name: str, pixels: Any, **options: Any) -> Path:
    Image.fromarray(np.asarray(pixels, np.uint8)).save(name, **options)
    return Path(name)


def read(file: Path, shape: tuple[int, ...], dtype: str = "float32", **fields: Any) -> Any:
    return read_images([file], {**FIELDS, **fields}, "x", shape, dtype).array


def test_a_padded_image_keeps_its_proportions_in_the_middle() -> None:
    file = save("wide.png", np.full((2, 4, 3), 200))
    found = read(file, (1, 8, 8, 3), pad=114)[0, :, :, 0]
    assert found[:, 0].tolist() == [114, 114, 200, 200, 200, 200, 114, 114]
    assert "scaled into 8 x 8, the rest filled with 114" in describe_images(
        {**FIELDS, "pad": 114}, (1, 8, 8, 3)
    )


def test_sizes_are_rounded_as_torchvision_does() -> None:
    file = save("photo.png", np.arange(7 * 10 * 3).reshape(7, 10, 3))
    assert size_of(file, {**FIELDS, "resize": 5}) == (5, 7)  # 7.14, cut off
    assert size_of(file, FIELDS) == (7, 10)
    columns = save("columns.png", np.tile(np.arange(9, dtype=np.uint8)[:, None], (5, 1, 3)))
    found = read(columns, (1, 5, 6, 3), resize=5)[0, 0, :, 0]
    assert found[0] == 2  # from 1.5, to the even number


def test_a_network_without_a_batch_takes_one_image() -> None:
    file = save("photo.png", np.full((4, 4, 3), [1, 2, 3]))
    assert read(file, (3, 4, 4), layout="nchw")[:, 0, 0].tolist() == [1, 2, 3]
    assert read(file, (4, 4, 3), color="bgr")[0, 0].tolist() == [3, 2, 1]


def test_a_photo_is_turned_by_its_orientation() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = save("photo.png", [[[255] * 3, [0] * 3]], exif=exif)
    assert size_of(file, FIELDS) == (2, 1)
    assert read(file, (1, 2, 1, 3))[0, :, 0, 0].tolist() == [255, 0]


def test_transparency_and_palettes_are_no_problem() -> None:
    image = Image.fromarray(np.zeros((2, 2), np.uint8)).convert("P")
    image.save("palette.png", transparency=bytes([0, 128]))
    assert read(Path("palette.png"), (1, 2, 2, 3)).shape == (1, 2, 2, 3)


def test_files_that_are_no_images_are_one_sentence(folder: Path) -> None:
    save("good.jpg", np.random.default_rng(0).integers(0, 255, (64, 64, 3)))
    content = (folder / "good.jpg").read_bytes()
    contents = {
        "cut.jpg": content[: len(content) // 2],
        "text.jpg": b"a text file\n",
        "empty.png": b"",
        "script.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",  # runs Ghostscript
    }
    messages = {
        "cut.jpg": "cut.jpg cannot be read as an image: image file is truncated",
        "text.jpg": "text.jpg cannot be read as an image: cannot identify",
        "empty.png": "empty.png cannot be read as an image: ",
        "script.jpg": "script.jpg cannot be read as an image: ",
    }
    for name, bytes_ in contents.items():
        (folder / name).write_bytes(bytes_)
        with pytest.raises(StageError) as error:
            read(Path(name), (1, 8, 8, 3))
        assert str(error.value).startswith(messages[name])
        assert "\n" not in str(error.value)


def test_sixteen_bits_are_not_cut_off() -> None:
    Image.fromarray(np.full((2, 2), 40_000, np.uint16)).save("deep.png")
    with pytest.raises(StageError, match="more than 8 bits per channel; name another file"):
        read(Path("deep.png"), (1, 2, 2, 3))


def test_a_crop_larger_than_the_image_is_refused() -> None:
    file = save("photo.png", np.zeros((8, 8, 3)))
    with pytest.raises(StageError, match="resized to 4 x 4, it is smaller than the crop of 6 x 6"):
        read(file, (1, 6, 6, 3), resize=4)
