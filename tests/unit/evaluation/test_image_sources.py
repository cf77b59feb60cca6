"""Images with labels in CSV files or by folder."""

from pathlib import Path
from typing import Any

import pytest
from evaluation_sources import IMAGES, inputs, labels, make_image, names, read, values

from buildsys.errors import StageError
from buildsys.evaluation.samples import open_samples

DATA = {"images": "data/val", "labels": "val.csv"}


def make(folder: Path, csv: str, *files: str) -> None:
    for number, file in enumerate(files):
        make_image(folder / "data/val" / file, number)
    (folder / "val.csv").write_text(csv)


CSVS = {
    "names": "a.png,3\nb.png,4\nsub/c.png,5\n",
    "header": "file,label\na.png,3\nb.png,4\nsub/c.png,5\n",
    "columns": "Label, width, File\n4,1,b.png\n3,1,a.png\n5,1,sub/c.png\n",
    "project": "path,class\ndata/val/a.png,3\ndata/val/b.png, 4\ndata/val/sub/c.png,5\n",
    "basename": "\ufeffc.png,5\na.png,3\n\nb.png,4\n",
}


@pytest.mark.parametrize("csv", CSVS.values(), ids=CSVS)
@pytest.mark.parametrize("pattern", ["data/val", "data/val/**/*.png"])
def test_labels_are_those_of_the_files(tmp_path: Path, csv: str, pattern: str) -> None:
    make(tmp_path, csv, "a.png", "b.png", "sub/c.png")
    batches = read(tmp_path, {**DATA, "images": pattern}, IMAGES, size=2)
    assert names(batches) == ["data/val/a.png", "data/val/b.png", "data/val/sub/c.png"]
    assert labels(batches) == [3, 4, 5]
    assert values(batches)[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert names(read(tmp_path, DATA, IMAGES, start=2)) == ["data/val/sub/c.png"]


@pytest.mark.parametrize(
    ("written", "typed"),
    [("1,-2", [1, -2]), ("1,2.5", [1.0, 2.5]), ("1,cat", ["1", "cat"])],
)
def test_labels_are_numbers_if_all_are(tmp_path: Path, written: str, typed: list[Any]) -> None:
    first, second = written.split(",")
    make(tmp_path, f"a.png,{first}\nb.png,{second}\n", "a.png", "b.png")
    read_labels = labels(read(tmp_path, DATA, IMAGES))
    assert read_labels == typed
    assert [*map(type, read_labels)] == [*map(type, typed)]


MISTAKES = [
    ("a.png,1\n", "val.csv has no label for 1 of 2 images: data/val/b.png"),
    (
        "a.png,1\nb.png,2\nz.png,3\n",
        "val.csv has labels for 1 files that are not images here: z.png",
    ),
    ("a.png,1\nb.png,2\na.png,3\n", "val.csv:3: a.png has a second label, 3"),
    ("a.png,1\nb.png\n", "val.csv:2: there is no label"),
    ("a.png,1\nb.png,\n", "val.csv:2: there is no label"),
    ("", "val.csv has no label for 2 of 2 images"),
]


@pytest.mark.parametrize(("csv", "problem"), MISTAKES)
def test_labels_that_do_not_match_are_a_sentence(tmp_path: Path, csv: str, problem: str) -> None:
    make(tmp_path, csv, "a.png", "b.png")
    with pytest.raises(StageError, match=problem):
        open_samples(DATA, IMAGES, tmp_path)


def test_a_name_of_two_images_is_a_sentence(tmp_path: Path) -> None:
    make(tmp_path, "a.png,1\n", "u/a.png", "v/a.png")
    with pytest.raises(StageError, match=r"names a.png, which is data/val/u/a.png or data/val/v"):
        open_samples(DATA, IMAGES, tmp_path)


def test_missing_images_and_labels_are_a_sentence(tmp_path: Path) -> None:
    for images in ("data/val", "data/*.jpg"):
        with pytest.raises(StageError, match="there are no images in data/"):
            open_samples({**DATA, "images": images}, IMAGES, tmp_path)
    make_image(tmp_path / "data/val/a.png", 0)
    with pytest.raises(StageError, match=r"val.csv cannot be read as a CSV file"):
        open_samples(DATA, IMAGES, tmp_path)


def test_a_file_that_is_no_image_is_a_sentence(tmp_path: Path) -> None:
    make(tmp_path, "a.png,1\nb.png,1\n", "a.png")
    (tmp_path / "data/val/b.png").write_text("text")
    with pytest.raises(StageError, match=r"b.png cannot be read as an image"):
        read(tmp_path, DATA, IMAGES)


def test_images_need_an_input_that_takes_them(tmp_path: Path) -> None:
    make(tmp_path, "a.png,1\n", "a.png")
    with pytest.raises(StageError, match=r"0 of x take images; declare inputs.NAME.preprocess"):
        read(tmp_path, DATA, inputs(1, 2, 2))
    with pytest.raises(StageError, match="the input x has no fixed size"):
        read(tmp_path, DATA, inputs(1, "h", 2, preprocess=IMAGES["x"]["preprocess"]))


def test_folders_are_classes_as_in_torchvision(tmp_path: Path) -> None:
    for number, file in enumerate(("cat/1.png", "cat/deep/2.png", "ant/3.png")):
        make_image(tmp_path / "val" / file, number)
    batches = read(tmp_path, {"folder": "val"}, IMAGES)
    assert names(batches) == ["val/ant/3.png", "val/cat/1.png", "val/cat/deep/2.png"]
    assert labels(batches) == [0, 1, 1]
    named = {"folder": "val", "classes": ["bee", "cat", "ant"]}
    assert labels(read(tmp_path, named, IMAGES)) == ["ant", "cat", "cat"]
    with pytest.raises(StageError, match="val has 2 folders for 3 classes; name the folders as in"):
        read(tmp_path, {"folder": "val", "classes": ["bee", "cat", "dog"]}, IMAGES)
    (tmp_path / "val/bee").mkdir()
    with pytest.raises(StageError, match="val/bee has no images"):
        open_samples({"folder": "val"}, IMAGES, tmp_path)
    with pytest.raises(StageError, match="other has no folders of classes"):
        open_samples({"folder": "other"}, IMAGES, tmp_path)
