import hashlib
import io
import struct
import sys
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import (
    BIT_DTYPES,
    NATIVE_DTYPES,
    Case,
    NpzFile,
    Tensor,
    load_case,
    load_cases,
    load_tensors,
    save_case,
    save_cases,
    save_tensors,
    tensor_of,
)

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
_RELAXED = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(data=st.data(), shape=SHAPES, dtype=st.sampled_from([*NATIVE_DTYPES, *BIT_DTYPES]))
@_RELAXED
def test_any_tensor_survives_a_round_trip(
    tmp_path: Path, data: st.DataObject, shape: tuple[int, ...], dtype: str
) -> None:
    stored = BIT_DTYPES.get(dtype, dtype)
    tensor = Tensor(data.draw(hnp.arrays(stored, shape)), dtype)
    save_case(tmp_path / "c.npz", {"x/y.z": tensor}, {"out.1": tensor})
    case = load_case(tmp_path / "c.npz")
    for read in (case.inputs["x/y.z"], case.outputs["out.1"]):
        assert (read.dtype, read.shape, read.array.dtype) == (dtype, shape, np.dtype(stored))
        assert read.array.tobytes() == tensor.array.tobytes()


def test_unlike_cases_survive_in_one_file(tmp_path: Path) -> None:
    x, rows = {"x.1": tensor_of([1.0, 2.0])}, np.array([[0, 0, 1]])
    cases = [
        Case(x, {"y": tensor_of([1])}),
        Case(x, {"y": tensor_of([2])}, "bfloat16", {"y": rows}),
        Case({}, {"y": tensor_of([[1.5]])}),
    ]
    save_cases(tmp_path / "sizes.npz", cases)
    read = load_cases(tmp_path / "sizes.npz")
    for ours, theirs in zip(read, cases, strict=True):
        assert (ours.float_type, ours.alternatives.keys()) == (
            theirs.float_type,
            theirs.alternatives.keys(),
        )
        for a, b in ((ours.inputs, theirs.inputs), (ours.outputs, theirs.outputs)):
            assert {n: t.array.tolist() for n, t in a.items()} == {
                n: t.array.tolist() for n, t in b.items()
            }
    assert np.array_equal(read[1].alternatives["y"], rows)


@given(shape=SHAPES, data=st.data())
@_RELAXED
def test_strings_survive_a_round_trip(
    tmp_path: Path, data: st.DataObject, shape: tuple[int, ...]
) -> None:
    words = st.text(st.characters(exclude_categories=("Cs",)), max_size=5).map(
        lambda word: word.rstrip("\0")
    )
    size = int(np.prod(shape))
    array = np.empty(size, dtype=object)
    array[:] = data.draw(st.lists(words, min_size=size, max_size=size))
    save_tensors(tmp_path / "s.npz", {"s": tensor_of(array.reshape(shape))})
    read = load_tensors(tmp_path / "s.npz")["s"]
    assert read.dtype == "string"
    assert read.shape == shape
    assert read.array.reshape(-1).tolist() == array.tolist()


def test_a_string_with_a_trailing_nul_is_refused() -> None:
    with pytest.raises(StageError, match="NUL"):
        tensor_of(np.array(["a\0"], dtype=object))


@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(width=32)))
@_RELAXED
def test_bfloat16_rounds_as_ml_dtypes_does(values: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16)
    ours = tensor_of(values, "bfloat16")
    nan = np.isnan(values)
    assert np.array_equal(np.isnan(ours.values()), nan)
    assert np.array_equal(ours.array[~nan], theirs.view(np.uint16)[~nan])
    assert np.array_equal(ours.values(), theirs.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int4", [-8, -1, 0, 7]),
        ("uint4", [0, 15]),
        ("float4e2m1", [-6.0, 0.5]),
        ("float8e4m3fn", [448.0, -0.5]),
        ("float8e5m2", [57344.0]),
        ("float8e4m3fnuz", [240.0]),
        ("float8e5m2fnuz", [-2.0]),
    ],
)
def test_values_of_small_types(dtype: str, values: list[float]) -> None:
    tensor = tensor_of(np.array(values), dtype)
    assert tensor.array.dtype == np.uint8
    assert tensor.values().tolist() == values


@pytest.mark.parametrize("scalar", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4])
def test_ml_dtypes_arrays_are_understood(scalar: type) -> None:
    tensor = tensor_of(np.array([1, -2], dtype=scalar))
    assert tensor.dtype in BIT_DTYPES
    assert tensor.values().tolist() == [1, -2]


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(StageError, match="datetime64"):
        tensor_of(np.array(["2020-01-01"], dtype="datetime64[D]"))


def test_equal_tensors_give_equal_files(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for name, array in (("a", x), ("b", np.asfortranarray(x)), ("c", x.astype(">f4"))):
        save_tensors(tmp_path / name, {"x": Tensor(array, "float32")})
    digests = {hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in "abc"}
    assert len(digests) == 1
    with zipfile.ZipFile(tmp_path / "a") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04broken"])
def test_a_broken_file_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    with pytest.raises(StageError, match=r"broken\.npz is not a file of tensors"):
        load_case(path)


def test_numpy_alone_reads_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.npz"
    low = {"x": tensor_of(np.ones(2), "bfloat16")}, {"y": tensor_of(np.ones(2), "float8e5m2")}
    save_case(file, *low)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    case = load_case(file)
    assert case.inputs["x"].values().tolist() == [1.0, 1.0]
    assert np.load(file)["in.x"].dtype == np.uint16
    with pytest.raises(StageError, match="ml_dtypes"):
        case.outputs["y"].values()


def header(shape: str, descr: str = "'<f4'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def member(content: bytes) -> bytes:
    """Return an archive of one array ``x``."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", content)
    return stream.getvalue()


HOSTILE: dict[str, bytes] = {
    "a claimed shape": member(header("(1000000000000,)") + bytes(4)),
    "no array": member(b"PK" * 10),
    "Python objects": member(header("(1,)", "'|O'") + bytes(8)),
    "a truncated file": member(header("(1,)") + bytes(4))[:-30],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_error(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.npz"
    file.write_bytes(HOSTILE[name])
    with pytest.raises(ValueError, match=r"^.+$") as caught:
        NpzFile(file)["x"]
    assert "\n" not in str(caught.value)
