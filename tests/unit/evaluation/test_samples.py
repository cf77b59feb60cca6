"""Samples from arrays and generators: batches, memory, resuming, digests and mistakes."""

import time
import tracemalloc
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluation_sources import inputs, labels, names, read, values
from hypothesis import given
from hypothesis import strategies as st

from buildsys.errors import StageError
from buildsys.evaluation.batch import MIB, Batch, Samples, digests, input_digests, reading, regroup
from buildsys.evaluation.samples import open_samples

NPZ = {"npz": "data.npz", "labels": "y"}
SAVES = [np.savez, np.savez_compressed]


def save(folder: Path, saver: Callable[..., None] = np.savez, **arrays: Any) -> None:
    saver(folder / "data.npz", **arrays)


def generator(folder: Path, body: str) -> dict[str, str]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    (folder / "own.py").write_text(f"import numpy as np\n\ndef samples():\n{lines}")
    return {"python": "own.py:samples"}


@pytest.mark.parametrize("saver", SAVES)
@pytest.mark.parametrize("start", [0, 3, 9, 10])
def test_rows_of_an_npz_file_are_read_in_order(tmp_path: Path, saver: Any, start: int) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    save(tmp_path, saver, x=rows, y=np.arange(10) * 2)
    batches = read(tmp_path, NPZ, inputs(2), start=start)
    assert [len(batch) for batch in batches] == [4] * ((10 - start) // 4) + (
        [(10 - start) % 4] if (10 - start) % 4 else []
    )
    if start < 10:
        assert np.array_equal(values(batches), rows[start:])
    assert labels(batches) == [*range(2 * start, 20, 2)]
    assert names(batches) == [f"{number}" for number in range(start, 10)]
    assert open_samples(NPZ, inputs(2), tmp_path).count == 10


def read_all(samples: Samples, size: int) -> tuple[int, int]:
    """Return the number of samples, and the peak of memory in bytes."""
    tracemalloc.start()
    count = sum(len(batch) for batch in samples.batches(size))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return count, peak


@pytest.mark.parametrize("saver", SAVES)
def test_memory_stays_flat_while_an_npz_file_is_read(tmp_path: Path, saver: Any) -> None:
    save(tmp_path, saver, x=np.zeros((3000, 8192), np.float32), y=np.zeros((3000, 64), np.uint8))
    samples = open_samples(NPZ, inputs(8192), tmp_path)
    count, peak = read_all(samples, 16)
    assert count == 3000  # 94 MiB
    assert peak < 8 * MIB


def test_memory_stays_flat_while_a_generator_is_read(tmp_path: Path) -> None:
    data = generator(tmp_path, "for n in range(50):\n    yield np.ones((64, 8192), 'f4'), [n] * 64")
    samples = open_samples(data, inputs(8192), tmp_path)
    count, peak = read_all(samples, 48)
    assert count == 3200  # 100 MiB
    assert peak < 20 * MIB


@pytest.mark.parametrize("size", [1, 32])
def test_reading_small_samples_costs_little(tmp_path: Path, size: int) -> None:
    save(tmp_path, x=np.zeros((10_000, 1, 8, 8), np.float32), y=np.arange(10_000))
    samples = open_samples(NPZ, inputs(1, 8, 8), tmp_path)
    started = time.process_time()
    assert sum(len(batch) for batch in samples.batches(size)) == 10_000
    assert time.process_time() - started < 0.5


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 2)), max_size=8), st.integers(1, 9))
def test_batches_have_the_size_and_all_samples_in_order(
    parts: list[tuple[int, int]], size: int
) -> None:
    made, number = [], 0
    for count, width in parts:
        rows = range(number, number + count)
        column = np.tile(np.array(rows, float)[:, None], width)
        made.append(Batch([f"{row}" for row in rows], {"x": column}, [*rows]))
        number += count
    batches = list(regroup([part for part in made if len(part)], size))
    assert labels(batches) == [*range(number)]
    assert all(batch.inputs["x"][:, 0].tolist() == batch.labels for batch in batches)
    changes = sum(
        first.inputs["x"].shape[1] != second.inputs["x"].shape[1]
        for first, second in pairwise(batches)
    )
    assert all(0 < len(batch) <= size for batch in batches)
    assert sum(len(batch) < size for batch in batches) <= changes + 1


@pytest.mark.parametrize(
    "body",
    [
        "for n in range(10):\n    yield {'x': np.full(2, n, 'f4')}, n",
        "for n in range(10):\n    yield np.full(2, n, 'f4'), np.int64(n)",
        "for n in range(0, 10, 5):\n    rows = np.arange(n, n + 5)\n"
        "    yield {'x': np.tile(rows[:, None], 2).astype('f4'), 'z': 0}, rows",
        "same = np.empty(2, 'f4')\nfor n in range(10):\n    same[:] = n\n    yield {'x': same}, n",
    ],
)
@pytest.mark.parametrize("start", [0, 7])
def test_generators_yield_samples_or_batches(tmp_path: Path, body: str, start: int) -> None:
    batches = read(tmp_path, generator(tmp_path, body), inputs(2), size=3, start=start)
    assert values(batches)[:, 0].tolist() == labels(batches) == [*range(start, 10)]
    assert all(type(label) is int for label in labels(batches))


def test_samples_of_another_length_begin_a_batch(tmp_path: Path) -> None:
    data = generator(tmp_path, "for n in (3, 3, 5, 3):\n    yield np.zeros(n, 'f4'), 'text'")
    batches = read(tmp_path, data, inputs("length"))
    assert [batch.inputs["x"].shape for batch in batches] == [(2, 3), (1, 5), (1, 3)]


def test_labels_are_plain(tmp_path: Path) -> None:
    body = "yield np.zeros(2, 'f4'), {'boxes': [[0, 1, 2, 3]], 'labels': [1]}\n"
    body += "yield np.zeros(2, 'f4'), [1, 2]\nyield np.zeros(2, 'f4'), np.float32(0.5)"
    detection, array, number = labels(read(tmp_path, generator(tmp_path, body), inputs(2)))
    assert detection["boxes"].shape == (1, 4)
    assert array.tolist() == [1, 2]
    assert number == 0.5


SAMPLE = "yield {'x': np.zeros(2, 'f4')}, 0\n"
GENERATOR_MISTAKES = [
    ("yield 3", "yields as sample 0 a value of type int; yield"),
    (SAMPLE + "yield np.zeros(2, 'f4')", "yields as sample 1 a value of type ndarray"),
    (SAMPLE + "yield {'y': 1}, 0", "yields as sample 1 no array for the inputs x"),
    ("yield np.zeros((3, 2), 'f4'), [0, 1]", "from sample 0, the input x has 3 rows and 2 labels"),
    ("yield np.zeros((3, 2), 'f4'), 1", r"an array of shape \(3, 2\) for x"),
    (SAMPLE + "yield np.zeros(3, 'f4'), 0", r"sample 1 has the shape \[3\] for the input x"),
    (SAMPLE + "yield np.zeros(2), 0", "sample 1 is float64, the input x is float32"),
    (SAMPLE + "raise KeyError('z')", r"failed at sample 1: KeyError: 'z' \(own.py:5\)"),
    (
        "yield {'x': np.zeros((2, 2), 'f4'), 'z': np.zeros((3, 1), 'f4')}, [0, 1]",
        "from sample 0, the input z has 3 rows and 2 labels",
    ),
    ("yield {'x': [[1], [1, 2]]}, 0", "own.py:samples failed at sample 0: ValueError"),
    ("yield np.zeros(2, 'f4'), {'boxes': [[1], [1, 2]]}", "failed at sample 0: ValueError"),
    ("return None", "own.py:samples failed: TypeError"),
    ("return\nyield", "the data has no samples"),
]


@pytest.mark.parametrize(("body", "problem"), GENERATOR_MISTAKES)
def test_mistakes_of_generators_are_a_sentence(tmp_path: Path, body: str, problem: str) -> None:
    data, declared = generator(tmp_path, body), inputs(2)
    if "the input z" in problem:
        declared["z"] = {"shape": ["batch", 1], "dtype": "float32"}
    with pytest.raises(StageError, match=problem):
        read(tmp_path, data, declared, size=1)


def npz_mistakes() -> list[tuple[dict[str, Any], str]]:
    rows, three = np.zeros((4, 2), np.float32), np.zeros(3)
    return [
        ({"x": rows}, "data.npz has no array y; it has x"),
        ({"y": three}, "data.npz has no array x"),
        ({"x": rows, "y": three}, "data.npz: x has 4 rows, y has 3"),
        ({"x": rows.astype(float), "y": np.zeros(4)}, "is float64, the input x is float32"),
        ({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4)}, r"has the shape \[3\]"),
        ({"x": np.asfortranarray(rows), "y": np.zeros(4)}, "x has no rows of numbers"),
        ({"x": rows, "y": np.float32(0)}, "y has no rows of numbers"),
        ({"x": rows, "y": np.array([None] * 4)}, "y has no rows of numbers"),
        ({"x": rows[:0], "y": np.zeros(0)}, "the data has no samples"),
    ]


@pytest.mark.parametrize(("arrays", "problem"), npz_mistakes())
def test_mistakes_in_npz_files_are_a_sentence(
    tmp_path: Path, arrays: dict[str, Any], problem: str
) -> None:
    save(tmp_path, **arrays)
    with pytest.raises(StageError, match=problem):
        read(tmp_path, NPZ, inputs(2))


@pytest.mark.parametrize("saver", SAVES)
def test_damaged_npz_files_are_a_sentence(tmp_path: Path, saver: Any) -> None:
    save(tmp_path, saver, x=np.random.default_rng(0).random((500, 40)), y=np.zeros(500))
    file = tmp_path / "data.npz"
    content = bytearray(file.read_bytes())
    content[5000:5100] = bytes(100)
    file.write_bytes(content)
    with pytest.raises(StageError, match=r"data.npz cannot be read as an .npz file"):
        read(tmp_path, NPZ, inputs(40, dtype="float64"))
    file.write_bytes(content[:3000])
    with pytest.raises(StageError, match=r"data.npz cannot be read as an .npz file"):
        open_samples(NPZ, inputs(40, dtype="float64"), tmp_path)


def test_mistakes_of_our_own_are_no_damaged_files() -> None:
    for error in (TypeError, AttributeError, IndexError, AssertionError):
        with pytest.raises(error), reading("x.npz", "an .npz file", "save it again"):
            raise error


def test_members_that_are_no_arrays_are_a_sentence(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", "text")
    with pytest.raises(StageError, match=r"data.npz cannot be read as an .npz file"):
        open_samples(NPZ, inputs(2), tmp_path)


def test_digests_depend_on_content_not_on_batches(tmp_path: Path) -> None:
    rows = np.arange(20, dtype=np.float32).reshape(10, 2)
    save(tmp_path, x=rows, y=np.arange(10))
    one = [text for batch in read(tmp_path, NPZ, inputs(2), size=1) for text in digests(batch)]
    all_at_once = digests(read(tmp_path, NPZ, inputs(2), size=10)[0])
    assert one == all_at_once
    assert len({*one}) == 10
    rows[3, 1] += 1
    save(tmp_path, x=rows, y=np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 0]))
    (changed,) = read(tmp_path, NPZ, inputs(2), size=10)
    assert [a == b for a, b in zip(one, digests(changed), strict=True)] == [
        number not in (3, 9) for number in range(10)
    ]


def test_digests_of_texts_depend_on_no_other_text(tmp_path: Path) -> None:
    body = "for text in ('a', 'longer', 'ä'):\n"
    body += "    yield np.array([text], dtype=object if text == 'a' else None), text"
    data, declared = generator(tmp_path, body), inputs(1, dtype="string")
    first, second = (
        [text for batch in read(tmp_path, data, declared, size=size) for text in digests(batch)]
        for size in (1, 3)
    )
    assert first == second
    assert len({*first}) == 3


def test_equal_inputs_have_equal_digests_whatever_their_labels() -> None:
    array = np.ones((2, 3), np.float32)
    batch = Batch(["a", "b"], {"x": array}, [{"boxes": np.zeros((0, 4))}, "text"])
    assert len({*input_digests(batch)}) == 1
    assert len({*digests(batch)}) == 2
    other = Batch(["a", "b"], {"x": array.reshape(2, 3, 1)}, batch.labels)
    assert not {*input_digests(batch)} & {*input_digests(other)}


def test_an_axis_of_samples_is_needed(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="the input x is a scalar"):
        open_samples(NPZ, {"x": {"shape": [], "dtype": "float32"}}, tmp_path)
