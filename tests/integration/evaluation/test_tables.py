"""Samples in Parquet and Arrow files and in saved datasets."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from evaluation_sources import IMAGES, inputs, labels, names, read, values
from PIL import Image

from buildsys.errors import StageError
from buildsys.evaluation.batch import MIB
from buildsys.evaluation.samples import open_samples

ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)


def table(**columns: Any) -> pa.Table:
    return pa.table({"x": [*ROWS], "label": [*range(10)], **columns})


def save(folder: Path, kind: str, content: pa.Table) -> dict[str, str]:
    """Save a table as one of the kinds of files."""
    if kind == "parquet":
        pq.write_table(content[:6], folder / "data-1.parquet", row_group_size=4)
        pq.write_table(content[6:], folder / "data-2.parquet")
        return {"parquet": "data-*.parquet"}
    if kind == "feather":
        pyarrow.feather.write_feather(content, str(folder / "data.feather"))
        return {"arrow": "data.feather"}
    (folder / "set").mkdir()
    with pa.ipc.new_stream(str(folder / "set/data-0.arrow"), content.schema) as writer:
        writer.write_table(content, max_chunksize=3)
    (folder / "set/state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}')
    return {"dataset": "set"}


@pytest.mark.parametrize("kind", ["parquet", "feather", "dataset"])
@pytest.mark.parametrize("start", [0, 5, 7])
def test_rows_are_samples(tmp_path: Path, kind: str, start: int) -> None:
    data = save(tmp_path, kind, table())
    batches = read(tmp_path, data, inputs(2), size=4, start=start)
    assert np.array_equal(values(batches), ROWS[start:])
    assert labels(batches) == [*range(start, 10)]
    assert names(batches) == [f"{number}" for number in range(start, 10)]
    assert len(batches[0]) == min(4, 10 - start)
    assert open_samples(data, inputs(2), tmp_path).count == 10


def test_columns_are_converted_to_the_inputs(tmp_path: Path) -> None:
    array = np.arange(40).reshape(10, 4).astype(float)
    nested = pa.array(array.reshape(10, 2, 2).tolist())
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), 4)
    content = table(nested=nested, fixed=fixed, word=[f"w{n}" for n in range(10)])
    data = save(tmp_path, "parquet", content)
    declared = {
        "nested": {"shape": ["batch", 2, 2], "dtype": "float32"},
        "fixed": {"shape": ["batch", 1, 2, 2], "dtype": "float16"},
        "word": {"shape": ["batch"], "dtype": "string"},
    }
    (batch,) = read(tmp_path, data, declared, size=10, start=0)
    assert np.array_equal(batch.inputs["nested"], array.reshape(10, 2, 2).astype(np.float32))
    assert batch.inputs["fixed"].dtype == np.float16
    assert np.array_equal(batch.inputs["fixed"], array.reshape(10, 1, 2, 2))
    assert batch.inputs["word"][3] == "w3"


def encoded(value: int) -> bytes:
    file = BytesIO()
    Image.fromarray(np.full((2, 2), value, np.uint8)).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("is_struct", [False, True])
def test_images_are_decoded_and_preprocessed(tmp_path: Path, is_struct: bool) -> None:
    images: list[Any] = [encoded(n) for n in range(3)]
    if is_struct:
        images = [{"bytes": content, "path": None} for content in images]
    data = save(tmp_path, "dataset", pa.table({"image": images, "label": ["a", "b", "c"]}))
    batches = read(tmp_path, data, IMAGES, size=2, start=1)
    assert values(batches)[:, 0, 0, 0].tolist() == [1, 2]
    assert labels(batches) == ["b", "c"]


def mistakes() -> list[tuple[str, pa.Table, str]]:
    ragged = [[1.0, 2.0], [1.0]] * 5
    return [
        ("parquet", table(label=[*range(9), None]), "row 9 has no label; remove such rows"),
        ("parquet", table(x=ragged), "column x from row 0 has lists of different lengths"),
        ("parquet", table(x=[None] * 10), "column x from row 0 has empty values"),
        ("parquet", table(x=[["a", "b"]] * 10), "sample 0 is string, the input x is float32"),
        ("parquet", table(x=[[1.0] * 3] * 10), r"has the shape \[3\] for the input x"),
        ("feather", table().drop(["label"]), "data.feather has no column label; it has x"),
        ("feather", table().drop(["x"]), "data.feather has no column x; it has label"),
        ("dataset", table()[:0], "the data has no samples"),
        (
            "parquet",
            pa.table({"image": [b"text"], "label": [1]}),
            "the image in row 0 cannot be read as an image",
        ),
    ]


@pytest.mark.parametrize(("kind", "content", "problem"), mistakes())
def test_mistakes_are_a_sentence(
    tmp_path: Path, kind: str, content: pa.Table, problem: str
) -> None:
    declared = IMAGES if "image" in content.column_names else inputs(2)
    with pytest.raises(StageError, match=problem):
        read(tmp_path, save(tmp_path, kind, content), declared)


def test_files_of_other_kinds_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"there are no files x\.parquet"):
        open_samples({"parquet": "x.parquet"}, inputs(2), tmp_path)
    for name, kind in (("x.parquet", "parquet"), ("x.arrow", "arrow")):
        (tmp_path / name).write_text("text " * 20)
        with pytest.raises(StageError, match=f"{name} cannot be read as a table"):
            open_samples({kind: name}, inputs(2), tmp_path)
    with pytest.raises(StageError, match="set cannot be read as a dataset of save_to_disk"):
        open_samples({"dataset": "set"}, inputs(2), tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set/dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(StageError, match="set has several splits; name one: set/train"):
        open_samples({"dataset": "set"}, inputs(2), tmp_path)


def test_offsets_outside_of_a_file_are_a_sentence(tmp_path: Path) -> None:
    data, offsets = save(tmp_path, "dataset", table()), np.arange(0, 8, 2, np.int32)
    content = (tmp_path / "set/data-0.arrow").read_bytes()
    assert offsets.tobytes() in content
    content = content.replace(offsets.tobytes(), (offsets + 2**20).tobytes())
    (tmp_path / "set/data-0.arrow").write_bytes(content)
    with pytest.raises(StageError, match=r"data-0\.arrow cannot be read as a table"):
        read(tmp_path, data, inputs(2))


def test_memory_stays_flat_while_parquet_is_read(tmp_path: Path) -> None:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(0).random(2**22)), 1024)
    content = pa.table({"x": rows, "label": np.zeros(len(rows), int)})
    pq.write_table(content, tmp_path / "x.parquet", use_dictionary=False)
    del rows, content
    samples = open_samples({"parquet": "x.parquet"}, inputs(1024), tmp_path)
    largest = 0
    before = pa.total_allocated_bytes()
    for _ in samples.batches(16):
        largest = max(largest, pa.total_allocated_bytes() - before)
    assert (tmp_path / "x.parquet").stat().st_size > 30 * MIB
    assert largest < 8 * MIB
