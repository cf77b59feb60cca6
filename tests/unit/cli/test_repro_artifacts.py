"""Which files of two builds are equal, which should be, and where they differ."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildsys.cli.reproducibility import Artifact, compare_builds, first_difference
from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model

MANIFEST = {
    "model": "net",
    "source": {"python": "net.py:Net"},
    "inputs": {"x": {"shape": [1, 4]}},
    "engines": [
        {"backend": "onnxruntime", "name": "plain", "graph_optimization_level": "extended"},
        {"backend": "onnxruntime", "name": "laid-out"},
        {"backend": "tensorrt_rtx", "name": "rtx"},
    ],
}


def plan() -> tuple[Action, ...]:
    return plan_model(model_fields(MANIFEST))


def write(build: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (build / "build/net" / name).parent.mkdir(parents=True, exist_ok=True)
        (build / "build/net" / name).write_bytes(content)
    return build


def compared(
    tmp_path: Path, first: dict[str, bytes], second: dict[str, bytes]
) -> dict[str, Artifact]:
    roots = [write(tmp_path / "a", first), write(tmp_path / "b", second)]
    found = compare_builds(roots[0] / "build", roots[1] / "build", plan())
    return {artifact.file: artifact for artifact in found}


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_the_first_differing_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, here: bytes, there: bytes
) -> None:
    folder = tmp_path_factory.mktemp("pair", numbered=True)
    (folder / "a").write_bytes(here)
    (folder / "b").write_bytes(there)
    pairs = zip(here, there, strict=False)
    differing = (index for index, (one, other) in enumerate(pairs) if one != other)
    expected = None if here == there else next(differing, min(len(here), len(there)))
    assert first_difference(folder / "a", folder / "b") == expected


def test_a_difference_far_into_a_large_file(tmp_path: Path) -> None:
    content = bytearray(3 << 20)
    (tmp_path / "a").write_bytes(content)
    content[(2 << 20) + 77] = 1
    (tmp_path / "b").write_bytes(content)
    assert first_difference(tmp_path / "a", tmp_path / "b") == (2 << 20) + 77


STATES = {
    "export/model.onnx": "different",
    "export/model.onnx.data": "different",
    "simplify/model.onnx": "different",
    "reference/opt.npz": "different",
    "engine/plain/engine.onnx": "different",
    "engine/laid-out/engine.onnx": "not expected to be equal",
    "engine/rtx/engine.engine": "not expected to be equal",
}


def test_files_that_should_be_equal(tmp_path: Path) -> None:
    first, second = (dict.fromkeys(STATES, content) for content in (b"[1]", b"[2]"))
    found = compared(tmp_path, first, second)
    assert {file: artifact.state for file, artifact in found.items()} == STATES
    for artifact in found.values():
        assert (artifact.first_byte, artifact.sizes) == (1, (3, 3))
        assert bool(artifact.exemption) == (artifact.state != "different")
    found = compared(tmp_path, first, first)
    assert {file: artifact.state for file, artifact in found.items()} == dict.fromkeys(
        STATES, "equal"
    )


def test_a_file_missing_in_one_build(tmp_path: Path) -> None:
    artifact = compared(tmp_path, {"export/model.onnx": b"x"}, {})["export/model.onnx"]
    assert (artifact.state, artifact.sizes) == ("different", (1, None))
    assert artifact.row()[-1] == "1 bytes / none"


def test_records_and_undeclared_files_are_no_artifacts(tmp_path: Path) -> None:
    first, second = ({"export/export.log": c, "export/export.json": c} for c in (b"1", b"2"))
    assert compared(tmp_path, first, second) == {}


def test_hostile_outputs_are_compared_by_their_bytes(tmp_path: Path) -> None:
    """What a file contains is described only where it can be read."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for number in range(1000):
            file.writestr(f"\x1b[2J{number}", b"")
    hostile = {
        "reference/opt.npz": archive.getvalue()[:-30],
        "export/model.onnx": b"\xff" * 1000,
        "export/model.onnx.data": b"",
    }
    found = compared(tmp_path, hostile, {name: content + b"x" for name, content in hostile.items()})
    assert found.keys() == hostile.keys()
    assert {one.first_byte for name, one in found.items()} == {len(one) for one in hostile.values()}
    assert "".join(one.difference for one in found.values()) == ""


def test_a_long_difference_is_cut_where_it_is_shown() -> None:
    artifact = Artifact("export:net", "model.onnx", "", (9, 9), 0, f"node {'n' * 10_000}: bias")
    text = artifact.row()[-1]
    assert text.endswith("nnn…")
    assert len(text) < 400
    assert artifact.as_json()["difference"].endswith("n: bias")


def test_a_pipe_is_no_artifact(tmp_path: Path) -> None:
    """Opening one would block."""
    (tmp_path / "a/build/net/export").mkdir(parents=True)
    os.mkfifo(tmp_path / "a/build/net/export/model.onnx")
    artifact = compared(tmp_path, {}, {"export/model.onnx": b"x"})["export/model.onnx"]
    assert (artifact.state, artifact.sizes) == ("different", (None, 1))


def test_only_the_report_reads_records() -> None:
    """Times differ from run to run, so that readers of records always run again."""
    records = {action.outputs["result"] for action in plan()}
    readers = {action.stage for action in plan() if records & set(action.inputs.values())}
    assert readers == {"report"}
