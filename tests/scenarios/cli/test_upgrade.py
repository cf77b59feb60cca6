"""`buildsys upgrade` with a wheel of ONNX Runtime that computes some models wrongly."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import pytest
from documents import check_document
from onnx import TensorProto, helper, numpy_helper

from buildsys.upgrade.shadow import make_shadow

INSTALLED = metadata.version("onnxruntime")
VERSION = "99.0+planted"
# the installed package under another version
PLANTED = """
import os, sys

_places = [os.path.join(entry, __name__, "__init__.py") for entry in sys.path]
_place = next(p for p in _places if os.path.exists(p) and "_place" not in open(p).read())
__path__ = [os.path.dirname(_place)]
exec(compile(open(_place).read(), _place, "exec"))
"""
# a session that doubles some outputs
DOUBLED = """
class InferenceSession(InferenceSession):
    def run(self, *args, **kwargs):
        factor = 2 if self.get_inputs()[0].name == "wrong" else 1
        return [factor * array for array in super().run(*args, **kwargs)]
"""
LARGER = """
_simplify = simplify

def simplify(*args, **kwargs):
    model, *others = _simplify(*args, **kwargs)
    model.doc_string = "larger" * 1000
    return model, *others
"""


def make_wheel(folder: Path, package: str = "onnxruntime", change: str = DOUBLED) -> Path:
    info = f"{package}-{VERSION}.dist-info"
    files = {
        f"{package}/__init__.py": PLANTED + change,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files)
    wheel = folder / f"{package}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def add_model(project: Path, name: str) -> None:
    folder = project / "configs/models"
    folder.mkdir(parents=True, exist_ok=True)
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    node = helper.make_node("MatMul", [name, "w"], ["y"])
    ports = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4])] for n in (name, "y")
    )
    graph = helper.make_graph([node], "net", next(ports), next(ports), [weights])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=9), project / f"{name}.onnx"
    )
    manifest = {
        "model": name,
        "source": {"onnx": f"{name}.onnx"},
        "inputs": {name: {"shape": ["batch", 4]}},
        "outputs": {"y": {"shape": ["batch", 4]}},
        "dims": {"batch": {"min": 1, "opt": 2, "max": 2}},
        "engines": [{"name": "ort", "backend": "onnxruntime"}],
        "bench": {"warmup": 0},
    }
    (folder / f"{name}.yaml").write_text(json.dumps(manifest))


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and ".buildsys" not in path.parts
    }


def test_a_wrong_model_is_held_back_and_the_other_one_is_not(
    tmp_path: Path, runtime_folder: Path
) -> None:
    project = tmp_path / "project"
    for name in ("wrong", "fine"):
        add_model(project, name)
    (project / "buildsys.toml").touch()
    (project / "dodo.py").write_text("from buildsys.dodo import task_targets  # noqa: F401\n")
    (project / "constraints.txt").write_text(f"onnxruntime=={INSTALLED}  # tested\n")
    wheel, before = make_wheel(tmp_path), files_of(project)
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(runtime_folder),
        "BUILDSYS_MACHINE_LOCK": str(runtime_folder),
        "PIP_NO_INDEX": "1",
    }
    files = ["--pin", "constraints.txt", "--hold", "held.txt", "--summary", "upgrade.md"]
    # latencies of a busy machine must not decide
    pace = ["--tolerance", "10000%", "--duration", "10ms"]
    done = subprocess.run(
        [sys.executable, "-m", "buildsys", "upgrade", str(wheel), *files, *pace, "--json"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    check_document(document)
    assert document["versions"] == {"onnxruntime": [INSTALLED, VERSION]}
    assert {engine["model"]: engine["verdict"] for engine in document["engines"]} == {
        "wrong": "wrong",
        "fine": "unchanged",
    }
    wrong, fine = sorted(document["engines"], key=lambda engine: str(engine["model"]), reverse=True)
    assert wrong["why"][0].startswith(f"against the golden outputs with onnxruntime {INSTALLED}")
    assert fine["figures"]["latency"]["before"] > 0 < fine["figures"]["memory"]["after"]
    assert document["affected"]["verify:fine:ort"] == {
        "state": "stale",
        "reasons": [f"onnxruntime {INSTALLED} → {VERSION}"],
    }
    assert (project / "constraints.txt").read_text() == f"onnxruntime=={VERSION}  # tested\n"
    assert (project / "held.txt").read_text() == "wrong:ort  # wrong\n"
    summary = (project / "upgrade.md").read_text()
    assert summary.startswith(f"# onnxruntime {INSTALLED} → {VERSION}: 1 wrong, 1 unchanged\n")
    assert f"wrong, engine ort: toolchain: onnxruntime-{INSTALLED}" in summary
    written = {"constraints.txt", "held.txt", "upgrade.md"}
    after = files_of(project)
    assert {n for n in after if after[n] != before.get(n)} == written  # nothing in build/
    assert not (project / ".buildsys/upgrade").exists()


@pytest.mark.skipif(
    os.environ.get("BUILDSYS_LONG_TESTS", "0") in ("", "0"),
    reason="builds in two environments for 20 s; run with BUILDSYS_LONG_TESTS=1",
)
def test_bisect_separates_libraries_from_each_other(tmp_path: Path) -> None:
    project, manifest = tmp_path / "project", "configs/models/large.yaml"
    add_model(project, "large")
    (project / "buildsys.toml").touch()
    wheels = [make_wheel(tmp_path), make_wheel(tmp_path, "onnxsim", LARGER)]
    environment = {**os.environ, "PIP_NO_INDEX": "1", "BUILDSYS_WORKER_IDLE": "0"}
    environment["PIP_FIND_LINKS"] = str(tmp_path)

    def buildsys(python: str | Path, *words: str) -> str:
        command = [str(python), "-m", "buildsys", *words]
        return subprocess.run(
            command, cwd=project, env=environment, check=True, capture_output=True, text=True
        ).stdout

    buildsys(sys.executable, "build", "verify:large:ort")
    text = (project / manifest).read_text()
    (project / manifest).write_text(text.replace('"max": 2', '"max": 4'))
    shadow = make_shadow(tmp_path / "shadow", None, [*map(str, wheels)], [])
    buildsys(shadow.python, "build", "verify:large:ort")
    ends = ("--figure", "size", "--good", "previous", "--bad", "last", "--json")
    document = json.loads(buildsys(sys.executable, "bisect", "large:ort", *ends))
    ((cause,),) = document["cause"]
    assert (cause["kind"], cause["subject"], cause["new"]) == ("tool", "onnxsim", VERSION)
    assert (document["bad_alone"], document["good_without"]) == (True, True)
    assert [each["subject"] for each in document["differences"]] == [
        "dims.batch.max", "onnxruntime", "onnxsim",
    ]  # fmt: skip
    assert document["not_separable"] == []
