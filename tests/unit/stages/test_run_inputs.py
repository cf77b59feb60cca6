"""Files as inputs of an engine: images, arrays, and files that are refused."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import load_tensors, save_case, tensor_of
from buildsys.stages.run.inputs import run
from buildsys.workers.job import Job

PREPROCESS: dict[str, Any] = {
    "resize": None, "pad": None, "interpolation": "bilinear", "color": "rgb", "layout": "nchw",
    "divide": 255.0, "mean": [0.0], "std": [1.0],
}  # fmt: skip
IMAGE = {"shape": ["batch", 3, 4, 4], "dtype": "float32", "preprocess": PREPROCESS}
IDS = {"shape": ["batch", "length"], "dtype": "int64", "preprocess": None}
DIMS = {
    "batch": {"min": 1, "max": 4, "multiple_of": 1},
    "length": {"min": 2, "max": 8, "multiple_of": 2},
    "height": {"min": 8, "max": 32, "multiple_of": 8},
    "width": {"min": 8, "max": 64, "multiple_of": 8},
}
ONE, TWO = {"image": IMAGE}, {"image": IMAGE, "ids": IDS}
ZEROS = np.zeros((1, 3, 4, 4), np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (8, 8), (255, 0, 0)).save("red.png")
    Image.new("RGB", (40, 20), (0, 255, 0)).save("wide.png")
    return tmp_path


def read(declared: dict[str, Any], *files: str) -> dict[str, Any]:
    """Return the tensors of files, each written as NAME=FILE or FILE."""
    given = []
    for text in files:
        name, equals, file = text.partition("=")
        given.append([name if equals else "", str(Path(file or name).absolute()), file or name])
    job = Job(
        target="run:net:ort", stage="", model="net", variant="ort",
        options={"inputs": declared, "dims": DIMS, "files": given, "weights": []}, inputs={},
        outputs={"inputs": Path("inputs.npz")}, project=Path.cwd(),
    )  # fmt: skip
    run(job)
    return load_tensors(Path("inputs.npz"))


def test_images_are_a_batch() -> None:
    found = read(ONE, "image=red.png", "image=wide.png")["image"]
    assert found.shape == (2, 3, 4, 4)
    assert found.array[:, :, 0, 0].tolist() == [[1, 0, 0], [0, 1, 0]]


def test_an_image_keeps_its_size_where_it_is_dynamic() -> None:
    free = {**IMAGE, "shape": ["batch", 3, "height", "width"]}
    assert read({"image": free}, "image=wide.png")["image"].shape == (1, 3, 16, 40)
    larger = {**free, "preprocess": {**PREPROCESS, "resize": 40}}
    assert read({"image": larger}, "image=wide.png")["image"].shape == (1, 3, 32, 64)
    Image.new("RGB", (320, 64)).save("long.png")
    assert read({"image": free}, "image=long.png")["image"].shape == (1, 3, 8, 64)
    Image.new("RGB", (8, 2)).save("small.png")
    assert read({"image": free}, "image=small.png")["image"].shape == (1, 3, 8, 32)
    square = {**IMAGE, "shape": ["batch", 3, "height", "height"]}
    assert read({"image": square}, "image=wide.png")["image"].shape == (1, 3, 16, 16)
    # the first of several images decides
    assert read({"image": free}, "image=red.png", "image=wide.png")["image"].shape == (2, 3, 8, 8)


def test_arrays_come_from_npy_and_npz_files() -> None:
    np.save("ids.npy", np.zeros((1, 4), np.int64))
    np.savez("any.npz", whatever=ZEROS)
    np.savez("all.npz", image=ZEROS, ids=np.ones((1, 2), np.int64))
    found = read(TWO, "ids=ids.npy", "image=any.npz")
    assert (found["ids"].shape, found["image"].shape) == ((1, 4), (1, 3, 4, 4))
    assert read(TWO, "all.npz")["ids"].array.tolist() == [[1, 1]]
    assert read(ONE, "any.npz")["image"].shape == (1, 3, 4, 4)
    np.save("foreign.npy", ZEROS.astype(">f4"))
    assert read(ONE, "image=foreign.npy")["image"].array.dtype == np.float32


def test_golden_cases_are_inputs() -> None:
    save_case(Path("opt.npz"), {"image": tensor_of(ZEROS)}, {"y": tensor_of(ZEROS)})
    assert read(ONE, "opt.npz").keys() == {"image"}
    half = {"image": {**IMAGE, "dtype": "bfloat16"}}
    save_case(Path("half.npz"), {"image": tensor_of(ZEROS, "bfloat16")}, {})
    assert read(half, "half.npz")["image"].dtype == "bfloat16"
    np.save("full.npy", ZEROS)  # numpy has no bfloat16
    assert read(half, "image=full.npy")["image"].dtype == "bfloat16"


class Attack:
    """A pickle that leaves a trace when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("name", ["evil.npz", "evil.npy", "pickle.npy"])
def test_no_file_executes_code(folder: Path, name: str) -> None:
    objects = np.array([Attack()], dtype=object)
    if name == "pickle.npy":
        (folder / name).write_bytes(pickle.dumps(Attack()))
    elif name == "evil.npy":
        np.save(name, objects, allow_pickle=True)
    else:
        np.savez(name, image=objects)
    with pytest.raises(StageError, match=f"{name} cannot be read: .*; save numbers or "):
        read(ONE, f"image={name}")
    assert not (folder / "executed").exists()


def test_other_mistakes_are_one_sentence_each(folder: Path) -> None:
    np.save("image.npy", ZEROS)
    fixed = {"image": {**IMAGE, "shape": [2, 3, 4, 4]}}
    single = {"image": {**IMAGE, "shape": [3, 4, 4]}}
    np.savez("two.npz", image=ZEROS, zzz=ZEROS)
    np.save("double.npy", ZEROS.astype(np.float64))
    (folder / "text.npz").write_text("no archive")
    (folder / "text.npy").write_text("no array")
    for declared, files, message in (
        (fixed, ["image=red.png"], "the input image takes 2 at a time, 1 given; name 2: --input"),
        (single, ["image=red.png"] * 2, "the input image takes 1 at a time, 2 given; name 1"),
        (ONE, ["image=image.npy"] * 2, "the input image is given twice; name each once; give"),
        (ONE, ["image=red.png", "image=image.npy"], "the input image is given twice"),
        (TWO, ["two.npz"], "two.npz has the array zzz, no input; inputs: image, ids"),
        (TWO, ["image=image.npy"], "the engine also needs the input ids; add --input ids=FILE"),
        (TWO, ["ids=two.npz"], "two.npz has no array ids"),
        (ONE, ["image=double.npy"], "double.npy is float64, the input image is float32; save it"),
        (ONE, ["image=text.npz"], "text.npz cannot be read: File is not a zip file; save numbers"),
        (ONE, ["image=text.npy"], "text.npy cannot be read: it is not an array of numpy; save "),
    ):
        with pytest.raises(StageError) as error:
            read(declared, *files)
        assert str(error.value).startswith(message)


def test_an_engine_that_preprocesses_gets_decoded_images() -> None:
    raw = {"shape": ["batch", "height", "width", 3], "dtype": "uint8"}
    declared = {"image": {**raw, "preprocess": {**PREPROCESS, "inside": True}}}
    pixels = np.random.default_rng(0).integers(0, 256, (8, 16, 3), np.uint8)
    Image.fromarray(pixels).save("a.png")
    for mode in ("RGBA", "P", "L", "1"):
        Image.fromarray(pixels).convert(mode).save(f"{mode}.png")
    assert np.array_equal(read(declared, "image=a.png")["image"].array, pixels[None])
    batch = read(declared, *(f"image={mode}.png" for mode in ("RGBA", "P", "L", "1")))["image"]
    assert (batch.shape, batch.dtype) == ((4, 8, 16, 3), "uint8")
    assert np.array_equal(batch.array[0], pixels)
    with pytest.raises(StageError, match=r"wide.png has 20 x 40 pixels, and red.png 8 x 8; give"):
        read(declared, "image=red.png", "image=wide.png")
    Image.fromarray(pixels[..., 0].astype(np.uint16) << 8).save("deep.png")
    with pytest.raises(StageError, match=r"deep.png .* more than 8 bits per channel; name another"):
        read(declared, "image=deep.png")
