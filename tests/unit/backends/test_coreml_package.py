"""Core ML packages as one file, without coremltools: bytes, damage, limits of the machine."""

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from buildsys.backends.coreml import package
from buildsys.backends.coreml.description import DESCRIPTION
from buildsys.backends.interface import load_backend
from buildsys.errors import StageError, Unavailable
from buildsys.system.backend_registry import Machine, Record
from buildsys.system.compatibility import engine_notes, machine_reasons

WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
RECORD = {"backend": "coreml", "specification": 7, "settings": {"precision": "fp16"}}


def write_package(
    folder: Path, identifiers: tuple[str, str], *, content: bytes = b"w" * 99
) -> Path:
    root = folder / "m.mlpackage"
    for name, text in ((package.MODEL, b"spec"), (WEIGHTS, content)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text)
    model, weights = identifiers
    entries = {
        model: {"name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"},
        weights: {"name": "weights", "path": "com.apple.CoreML/weights"},
    }
    manifest = {"itemInfoEntries": entries, "rootModelIdentifier": model}
    (root / package.MANIFEST).write_text(json.dumps(manifest))
    return root


def engine_of(root: Path, name: str = "engine.mlpackage.zip") -> Path:
    package.set_identifiers(root)
    package.zip_package(root, root.parent / name)
    return root.parent / name


def test_the_bytes_depend_on_the_content_alone(tmp_path: Path) -> None:
    one = write_package(tmp_path / "one", ("B-1", "A-2"))
    other = write_package(tmp_path / "other", ("X-9", "Z-8"))
    for file in other.rglob("*"):
        os.utime(file, (1, 1))
        file.chmod(0o755)
    assert engine_of(one).read_bytes() == engine_of(other).read_bytes()
    third = write_package(tmp_path / "third", ("B-1", "A-2"), content=b"v" * 99)
    assert engine_of(third).read_bytes() != engine_of(one).read_bytes()
    manifests = [json.loads((root / package.MANIFEST).read_text()) for root in (one, third)]
    first, changed = (set(manifest["itemInfoEntries"]) for manifest in manifests)
    assert len(first & changed) == 1  # that of the unchanged spec
    assert manifests[0]["rootModelIdentifier"] in first & changed


def test_a_zip_holds_one_package_with_fixed_dates(tmp_path: Path) -> None:
    engine = engine_of(write_package(tmp_path, ("B", "A")))
    with zipfile.ZipFile(engine) as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert {name.partition("/")[0] for name in names} == {"m.mlpackage"}
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
    root = package.unpack(engine, tmp_path / "unpacked")
    assert (root / WEIGHTS).read_bytes() == b"w" * 99


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_truncated_zip_is_one_sentence(tmp_path: Path, cut: float) -> None:
    engine = engine_of(write_package(tmp_path, ("B", "A"), content=b"w" * 9999))
    content = engine.read_bytes()
    engine.write_bytes(content[: int(cut if cut >= 1 else cut * len(content))])
    with pytest.raises(StageError, match=r"engine\.mlpackage\.zip is damaged: .*; copy it again"):
        package.unpack(engine, tmp_path / "unpacked")


@pytest.mark.parametrize(
    "names", [("../m.mlpackage/x",), ("m.mlpackage/../../x",), ("a/x", "b/x"), ("model.mlmodel",)]
)
def test_a_zip_of_something_else_is_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    with zipfile.ZipFile(tmp_path / "engine.zip", "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    with pytest.raises(StageError, match=r"engine\.zip is no Core ML package"):
        package.unpack(tmp_path / "engine.zip", tmp_path / "unpacked")


def test_elsewhere_an_engine_names_the_system_that_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Record("coreml", RECORD)
    monkeypatch.setattr(sys, "platform", "linux")
    (reason,) = machine_reasons(record)
    assert str(reason) == (
        "Core ML runs engines on macOS only, and this is Linux; copy the engine's folder to a"
        " machine with macOS"
    )
    assert "macOS 13 or iOS 16" in next(engine_notes(record))
    with pytest.raises(Unavailable, match="Core ML runs engines on macOS only, and this is Linux"):
        load_backend("coreml", to_run=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert DESCRIPTION.system_problem() is None


@pytest.mark.parametrize(("here", "runs"), [("12.7", False), ("13.0", True), ("26.1", True)])
def test_an_older_macos_is_refused(here: str, runs: bool) -> None:
    mac = Machine("Darwin arm64", macos=here)
    found = [str(reason) for reason in DESCRIPTION.reasons(Record("coreml", RECORD), "9.0", mac)]
    assert (not found) is runs
    assert all("built for macOS 13 or iOS 16, but this is macOS 12; build it" in f for f in found)
