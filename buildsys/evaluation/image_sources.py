"""Image files with labels from a CSV file or from their folders."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import has_magic
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any

from buildsys.errors import StageError
from buildsys.evaluation.batch import Batch, Inputs, Label, Samples, reading
from buildsys.models.images import EncodedImage, read_images
from buildsys.onnx_graphs.tensors import Array
from buildsys.system.files import IMAGE_SUFFIXES, image_files


def image_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open the images of a folder or pattern, with a CSV file of labels."""
    pattern, folder = data["images"], project / data["images"]
    if folder.is_dir():
        files = [_name(path, project) for path in image_files(str(folder))]
    else:
        paths = (path for path in project.glob(pattern) if path.suffix.lower() in IMAGE_SUFFIXES)
        files = sorted(_name(path, project) for path in paths)
        folder = project.joinpath(
            *takewhile(lambda part: not has_magic(part), PurePath(pattern).parts)
        )
    if not files:
        hint = f"add images ({' '.join(IMAGE_SUFFIXES)}), or correct evaluate.data"
        raise StageError(f"there are no images in {pattern}", hint)
    return _files(files, read_labels(data["labels"], files, folder, project), inputs, project)


def folder_samples(data: Mapping[str, Any], inputs: Inputs, project: Path) -> Samples:
    """Open a folder with a folder per class, numbered in order of names."""
    folder = project / data["folder"]
    classes = sorted(path for path in folder.glob("*") if path.is_dir())
    if not classes:
        raise StageError(f"{data['folder']} has no folders of classes", "correct evaluate.data")
    files, labels = [], []
    for number, path in enumerate(classes):
        images = [_name(image, project) for image in image_files(str(path))]
        if not images:
            hint = "remove it, or add images; every folder is a class"
            raise StageError(f"{_name(path, project)} has no images", hint)
        files += images
        labels += [number] * len(images)
    return _files(files, labels, inputs, project)


def read_labels(title: str, files: Sequence[str], folder: Path, project: Path) -> list[Label]:
    """Read the label of each file from a CSV file with the columns file and label.

    Files are named from the project, the folder of images, or by name alone.
    Raises: StageError: it cannot be read, or does not match the images.
    """
    by_name: dict[str, str] = {}
    for line, name, label in _csv_rows(title, project):
        if by_name.setdefault(str(PurePath(name)), label) != label:
            problem = f"{title}:{line}: {name} has a second label, {label}"
            raise StageError(problem, "give one label per file")
    used: dict[str, str] = {}
    missing = []
    for file in files:
        path = project / file
        inside = str(path.relative_to(folder)) if path.is_relative_to(folder) else file
        match = next((text for text in (file, inside, path.name) if text in by_name), None)
        if match is None:
            missing.append(file)
        elif used.setdefault(match, file) != file:
            problem = f"{title} names {match}, which is {used[match]} or {file}"
            raise StageError(problem, "write the path from the folder of images")
    if missing:
        problem = f"{title} has no label for {len(missing)} of {len(files)} images: {missing[0]}"
        raise StageError(problem, "add lines FILE,LABEL, or remove the images")
    if extra := by_name.keys() - used:
        problem = (
            f"{title} has labels for {len(extra)} files that are not images here: {min(extra)}"
        )
        raise StageError(problem, "remove the lines, or correct evaluate.data.images")
    return _typed([by_name[match] for match in used])


def _csv_rows(title: str, project: Path) -> list[tuple[int, str, str]]:
    """Read line, file and label; a header may name the columns."""
    with (
        reading(title, "a CSV file", "correct evaluate.data.labels"),
        (project / title).open(encoding="utf-8-sig", newline="") as stream,
    ):
        rows = [(number, row) for number, row in enumerate(csv.reader(stream), 1) if any(row)]
    file, label = 0, 1
    if rows and not rows[0][1][0].lower().endswith(IMAGE_SUFFIXES):
        header = [cell.strip().lower() for cell in rows.pop(0)[1]]
        if {"file", "label"} <= {*header}:
            file, label = header.index("file"), header.index("label")
    for number, row in rows:
        if len(row) <= max(file, label) or not row[label].strip():
            raise StageError(f"{title}:{number}: there is no label", "write FILE,LABEL")
    return [(number, row[file].strip(), row[label].strip()) for number, row in rows]


def _typed(labels: list[str]) -> list[Label]:
    """Convert labels to numbers if all are."""
    if all(re.fullmatch(r"[+-]?\d+", label) for label in labels):
        return [int(label) for label in labels]
    try:
        return [float(label) for label in labels]
    except ValueError:
        return [*labels]


def _files(files: list[str], labels: list[Label], inputs: Inputs, project: Path) -> Samples:
    def read(start: int, size: int) -> Iterator[Batch]:
        for begin in range(start, len(files), size):
            names = files[begin : begin + size]
            images = prepared([project / name for name in names], inputs)
            yield Batch(names, images, labels[begin : begin + size])

    return Samples(inputs, len(files), read)


def prepared(images: Sequence[Path | EncodedImage], inputs: Inputs) -> dict[str, Array]:
    """Decode and preprocess images for the input that has ``preprocess``.

    Raises: StageError: there is no such input, or a file cannot be read.
    """
    names = [name for name, declared in inputs.items() if declared.get("preprocess")]
    if len(names) != 1:
        problem = f"images can fill one input, and {len(names)} of {', '.join(inputs)} take images"
        raise StageError(problem, "declare inputs.NAME.preprocess of one")
    declared = inputs[names[0]]
    shape = (len(images), *declared["shape"][1:])
    if any(isinstance(dim, str) for dim in shape):
        raise StageError(f"the input {names[0]} has no fixed size", "fix its height and width")
    tensor = read_images(images, declared["preprocess"], names[0], shape, declared["dtype"])
    return {names[0]: tensor.values()}


def _name(path: str | Path, project: Path) -> str:
    return str(Path(path).relative_to(project)) if Path(path).is_relative_to(project) else str(path)
