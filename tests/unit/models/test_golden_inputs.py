from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from buildsys.errors import StageError
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.tensors import Array


def values(
    dtype: str = "float32",
    data: Any = None,
    shape: tuple[int, ...] = (2, 3),
    case: str = "opt",
    **more: Any,
) -> Array:
    options = {"name": "x", "seed": 0, "project": Path(), **more}
    tensor = golden_input(options.pop("name"), shape, dtype, data, case=case, **options)
    assert tensor.dtype == dtype
    return tensor.values()


NORMAL = {"random": "normal", "mean": 0.0, "std": 1.0, "low": 0.0, "high": 1.0}


def integers(low: float, high: float) -> dict[str, Any]:
    return {**NORMAL, "random": "integers", "low": low, "high": high}


def test_random_values_are_the_same_on_every_machine() -> None:
    expected = [[-1.6024, 1.1932, -0.4733], [0.1382, -0.5799, -0.1781]]
    assert np.allclose(values(), expected, atol=1e-4), values()
    assert (
        values("int64", integers(0, 1000)).tolist() == values("int64", integers(0, 1000)).tolist()
    )


def test_random_values_differ_by_input_case_and_seed() -> None:
    drawn = [values(), values(name="y"), values(case="max"), values(seed=1)]
    assert len({array.tobytes() for array in drawn}) == 4


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int8", 0, 9), ("uint64", 0, 9), ("bool", 0, 1), ("int4", 0, 7), ("uint4", 0, 9)],
)
def test_default_integers_fill_their_range(dtype: str, low: int, high: int) -> None:
    array = values(dtype, shape=(1000,)).astype(np.int64)
    assert (array.min(), array.max()) == (low, high)


def test_normal_and_uniform_follow_their_fields() -> None:
    normal = values(data={**NORMAL, "mean": 5.0, "std": 0.1}, shape=(10_000,))
    assert normal.mean() == pytest.approx(5.0, abs=0.01)
    assert normal.std() == pytest.approx(0.1, abs=0.01)
    uniform = values(
        data={**NORMAL, "random": "uniform", "low": -2.0, "high": -1.0}, shape=(10_000,)
    )
    assert -2.0 <= uniform.min() < -1.99
    assert -1.01 < uniform.max() <= -1.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "complex64", "float8e4m3fn"])
def test_every_float_type_can_be_random(dtype: str) -> None:
    array = values(dtype, shape=(50,))
    assert np.isfinite(array).all()
    assert len(np.unique(array)) > 10


def test_high_is_exclusive() -> None:
    assert set(values("int64", integers(3, 5), shape=(100,)).tolist()) == {3, 4}


def test_a_constant_fills_everything() -> None:
    assert values("int64", {"constant": 7}).tolist() == [[7] * 3] * 2
    assert values("string", {"constant": "a"}).tolist() == [["a"] * 3] * 2
    assert values("float32", {"constant": float("-inf")})[0, 0] == -np.inf


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    images = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.savez(
        tmp_path / "calibration.npz",
        x=images,
        ids=np.arange(6),
        objects=np.array([{}], dtype=object),
    )
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4 no")
    return tmp_path


def test_npz_values_are_cropped_from_the_start(archive: Path) -> None:
    data = {"npz": "calibration.npz", "key": None}
    assert values(data=data, project=archive).tolist() == [[0, 1, 2], [6, 7, 8]]
    assert values("int64", {**data, "key": "ids"}, shape=(2,), project=archive).tolist() == [0, 1]
    assert values("bfloat16", data, project=archive).tolist() == [[0, 1, 2], [6, 7, 8]]


@pytest.mark.parametrize(
    ("npz", "key", "shape", "dtype", "message"),
    [
        ("calibration.npz", "y", (2, 3), "float32",
         "calibration.npz has no array y; it has x, ids, objects"),
        ("calibration.npz", "x", (5, 3), "float32",
         "has the shape (4, 6), input x needs (5, 3) in the case opt"),
        ("calibration.npz", "x", (2, 3), "float16",
         "x is float32, input x is float16; save it as float16"),
        ("calibration.npz", "objects", (1,), "float32", "cannot be read"),
        ("broken.npz", "x", (2, 3), "float32", "broken.npz cannot be read as an .npz file"),
    ],
)  # fmt: skip
def test_unsuitable_npz_files_are_errors(
    archive: Path, npz: str, key: str, shape: tuple[int, ...], dtype: str, message: str
) -> None:
    with pytest.raises(StageError) as error:
        values(dtype, {"npz": npz, "key": key}, shape=shape, project=archive)
    assert message in str(error.value)


def test_images_are_the_first_of_their_folder(tmp_path: Path) -> None:
    for number in range(3):
        image = Image.new("RGB", (8, 4), (10 * number, 0, 255))
        (tmp_path / "photos").mkdir(exist_ok=True)
        image.save(tmp_path / f"photos/{number}.png")
    data = {
        "images": "photos",
        "resize": None,
        "interpolation": "nearest",
        "color": "rgb",
        "layout": "nhwc",
        "divide": 255.0,
        "mean": (0.0,),
        "std": (1.0,),
    }
    found = values(data=data, shape=(2, 4, 8, 3), project=tmp_path)
    assert found.shape == (2, 4, 8, 3)
    assert found[1, 0, 0].tolist() == [np.float32(10) / np.float32(255), 0, 1]
    for dtype, shape, message in (
        ("float32", (4, 4, 8, 3), "photos has 3 images for the input x, 4 are required"),
        ("float32", (2, 3), "the input x has the shape (2, 3), which does not fit rgb images"),
        ("uint8", (1, 4, 8, 3), "the input x is uint8, but divide, mean or std change the pixel"),
    ):
        with pytest.raises(StageError) as error:
            values(dtype, data, shape=shape, project=tmp_path)
        assert message in str(error.value)


def test_values_from_a_callable(tmp_path: Path) -> None:
    (tmp_path / "golden_data.py").write_text(
        "import numpy as np\n"
        "def ramp(shape, dtype, case, seed): return np.full(shape, seed + len(case), dtype)\n"
        "def flat(shape, dtype, case, seed): return np.zeros(3, dtype)\n"
        "def wrong(shape, dtype, case, seed): return np.zeros(shape)\n"
        "def broken(shape, dtype, case, seed): return 1 / 0\n"
    )
    assert (
        values(data={"python": "golden_data.py:ramp"}, seed=4, project=tmp_path).tolist()
        == [[7] * 3] * 2
    )
    for name, message in {
        "flat": "returned the shape (3,) for input x, case opt; expected (2, 3); return an array "
        "of the shape in its first argument",
        "wrong": "returned float64 for input x, case opt; expected float32; convert it with "
        ".astype(dtype), its second argument",
        "broken": "failed for input x, case opt: ZeroDivisionError: division by zero "
        "(golden_data.py:5)",
    }.items():
        with pytest.raises(StageError) as error:
            values(data={"python": f"golden_data.py:{name}"}, project=tmp_path)
        assert str(error.value) == f"golden_data.py:{name} {message}"
