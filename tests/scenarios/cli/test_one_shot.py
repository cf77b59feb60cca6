"""Builds of a source: without a project, again, after a change, and kept with --save."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from project_folder import ProjectFolder

NO_BENCH = "--no-bench"
CODE = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)
"""
INPUT = ("--input", "x=batch,4")


def write_network(file: Path, scale: float = 1.0) -> None:
    text = '(float[n,4] x) => (float[n,3] y) { ["product"] y = MatMul(x, w) }'
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 17]> graph {text}')
    weights = np.linspace(-scale, scale, 12, dtype=np.float32).reshape(4, 3)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, file)


@pytest.fixture
def folder(empty_place: ProjectFolder) -> ProjectFolder:
    """A folder that is not a project, with a network in another one."""
    write_network(empty_place.root / "my nets/net 1.onnx")
    return empty_place


def test_a_source_is_built_again_after_a_change_only(folder: ProjectFolder) -> None:
    command = ("build", "my nets/net 1.onnx", NO_BENCH)
    first = folder.buildsys(*command)
    assert first.code == 0, first
    out = folder.root / "net-1"
    assert {path.name for path in out.iterdir()} == {"ort-cpu", "report.html", ".buildsys.json"}
    assert {path.name for path in (out / "ort-cpu").iterdir()} == {"engine.json", "engine.onnx"}
    assert 'next: buildsys.load_engine("net-1/ort-cpu") in Python' in first.out
    assert {path.name for path in folder.root.iterdir()} == {".buildsys", "my nets", "net-1"}

    again = folder.buildsys(*command)
    assert not again.ran
    assert again.out.startswith("everything is up to date (6 targets)\nnet-1/ is up to date: ort-")

    engine = (out / "ort-cpu/engine.onnx").read_bytes()
    write_network(folder.root / "my nets/net 1.onnx", 2.0)
    changed = folder.buildsys(*command)
    assert "run          export:net-1  … my nets/net 1.onnx changed\n" in changed.out
    assert (out / "ort-cpu/engine.onnx").read_bytes() != engine

    (out / "ort-cpu/engine.onnx").write_bytes(b"edited")
    write_network(folder.root / "my nets/net 1.onnx", 3.0)
    refused = folder.buildsys(*command)
    assert refused.code == 3
    assert "net-1/ort-cpu/engine.onnx is not of an earlier build; move it away" in refused.err
    assert (out / "ort-cpu/engine.onnx").read_bytes() == b"edited"


def test_a_kept_manifest_is_restored_from_the_store(folder: ProjectFolder) -> None:
    (folder.root / "net.py").write_text(CODE)
    (folder.root / "build").mkdir()
    (folder.root / "build/make.txt").touch()  # of another program
    command = ("build", "./net.py:Net", *INPUT, NO_BENCH, "--engine", "ort-cpu")
    assert folder.buildsys(*command).code == 0
    saved = folder.buildsys(*command, "--save")
    assert (saved.code, saved.ran) == (0, set())
    assert saved.out.endswith("next: buildsys build Net, then buildsys run Net\n")
    built = folder.buildsys("build", "Net", NO_BENCH)
    assert built.code == 0
    assert built.ran == built.restored
    assert "engine:Net:ort-cpu" in built.restored
    assert (folder.root / "build-engines/Net/engine/ort-cpu/engine.onnx").is_file()

    write_network(folder.root / "a/Net.onnx")  # a folder of the project, whose names precede
    inside = folder.buildsys("build", "Net.onnx", NO_BENCH, "--json", cwd=folder.root / "a")
    assert (inside.code, json.loads(inside.out)["exit_code"]) == (0, 0)
    assert (folder.root / "a/Net/ort-cpu/engine.onnx").is_file()
    assert "has the engines of ./net.py" not in inside.err
    differs = folder.buildsys("build", "a/Net.onnx", NO_BENCH)
    assert differs.code == 3
    assert "Net has the engines of net.py:Net; move it away, or build in" in differs.err
    differs = folder.buildsys("build", "Net.onnx", "--save", cwd=folder.root / "a")
    assert "../configs/models/Net.yaml exists, and differs; move it away" in differs.err


def test_int8_takes_arrays(folder: ProjectFolder) -> None:
    np.savez(folder.root / "data.npz", x=np.ones((64, 4), np.float32))
    command = ("build", "my nets/net 1.onnx", NO_BENCH, "--engine", "ort-int8")
    ran = folder.buildsys(*command, "--calibration", "data.npz")
    assert ran.code in (0, 1), ran  # 3 weights
    assert "calibrate:net-1" in ran.passed
    (manifest,) = folder.root.glob(".buildsys/sources/*/configs/models/net-1.yaml")
    assert "data: {npz: data.npz}}\n" in manifest.read_text()  # of the golden inputs, too
    wrong = folder.buildsys(*command, "--calibration", "{y: {constant: 1}}")
    assert wrong.code == 3
    assert "unknown input 'y'; did you mean" in wrong.err or "inputs: x" in wrong.err
    without = folder.buildsys(*command)
    assert without.code == 3
    assert "ort-int8 needs calibration data; add --calibration a folder of images" in without.err


def test_int8_of_a_quantized_network_takes_its_ranges(folder: ProjectFolder) -> None:
    text = """<ir_version: 10, opset_import: ["" : 17]> graph (float[n,4] x) => (float[n,3] y)
        <float s = {0.01}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        v = DequantizeLinear(w, s, z)
        y = MatMul(d, v)
    }"""
    model = parser.parse_model(text)
    weights = np.linspace(-60, 60, 12).astype(np.int8).reshape(4, 3)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder.root / "q.onnx")
    ran = folder.buildsys("build", "q.onnx", NO_BENCH, "--engine", "ort-int8")
    assert ran.code == 0, ran
    assert (folder.root / "q/ort-int8/engine.onnx").is_file()
    assert not any(target.startswith("calibrate") for target in ran.passed)
