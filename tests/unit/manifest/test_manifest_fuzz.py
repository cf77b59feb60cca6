"""Bad values give located errors or a valid project, and nothing else."""

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from buildsys.errors import ManifestErrors
from buildsys.project.load import load_project

PYTHON = "def make(): ..."
WEIGHTS = {"file": "dodo.py", "sha256": hashlib.sha256(PYTHON.encode()).hexdigest()}
GOOD: dict[str, Any] = {
    "model": "net",
    "source": {"python": "dodo.py:make", "weights": WEIGHTS, "kwargs": {"a": [1]}},
    "inputs": {
        "x": {
            "shape": ["batch", 3], "dtype": "int64",
            "data": {"random": "integers", "low": 0, "high": 9},
        },
        "y": {"shape": [3], "data": {"npz": "dodo.py", "key": "y"}},
    },
    "call": {"args": [["x"], {"tuple": ["y", None]}], "kwargs": {"mode": {"text": "mean"}}},
    "outputs": {"z": {"shape": ["batch", None], "dtype": "float32"}},
    "dims": {"batch": {"min": 1, "opt": 2, "max": 3, "odd": 3, "multiple_of": 1}},
    "dynamic_axes": {"x": {"0": "batch"}, "z": [0]},
    "export": {"exporter": "dynamo", "opset": 18, "optimize": True, "verbose": None},
    "surgery": [
        {"rename": {"x": "u", "z": "w"}}, {"cast": {"u": "int32"}},
        {"cut": {"inputs": {"a": {"shape": [3]}, "u": {}}, "outputs": ["w"]}},
        {
            "function": "dodo.py:make", "changes": "numbers",
            "reference": {"python": "dodo.py:make"},
            "inputs": {"v": {"shape": ["batch"], "data": {"constant": 1}}}, "outputs": {"w": {}},
            "when": "after_simplify",
        },
    ],
    "simplify": {"tool": "onnxslim", "tensor_size_threshold": "1MiB"},
    "validate": {"rtol": 0.1, "cases": ["min", "opt"]},
    "engines": ["e", {"use": "e", "name": "f", "tolerance": {"rtol": 1}}, {
        "name": "r", "backend": "tensorrt_rtx",
        "profiles": [{"v": {"min": [1], "opt": [2], "max": [3]}}], "flags": {"tf32": True},
    }],
    "verify": {"fp16": {"rtol": 0.5}},
    "bench": {"duration": "3s", "cases": ["opt"]},
    "timeout": {"export": "1min"},
    "matrix": {"export.opset": [18, 19], "engines.0": ["e"]},
    "extends": "_base.yaml",
}  # fmt: skip
ENGINES = {"e": {"backend": "onnxruntime"}}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of some data."""
    members = value.items() if isinstance(value, dict) else ()
    for name, member in enumerate(value) if isinstance(value, list) else members:
        yield (*path, name)
        yield from places(member, (*path, name))


def write(root: Path, manifests: dict[str, Any], project: Any = None) -> None:
    (root / "configs/models").mkdir(parents=True, exist_ok=True)
    (root / "dodo.py").write_text(PYTHON)
    (root / "configs/models/_base.yaml").write_text("bench: {min_samples: 3}")
    files = {f"models/{name}": manifest for name, manifest in manifests.items()}
    for name, content in (files | {"engines": ENGINES, "project": project or {}}).items():
        text = json.dumps(content).replace("Infinity", ".inf")
        (root / f"configs/{name}.yaml").write_text(text)


def check(root: Path) -> list[str]:
    """Return the names of the models, after checking the form of any errors."""
    try:
        project = load_project(root, remember=False)
        project.require_all()
    except ManifestErrors as errors:
        assert errors.errors
        for error in errors.errors:
            assert error.problem
            assert not error.file.is_absolute()
            assert len(str(error)) < 2000
            for word in ("\n", "Input should", "pydantic", "REFUSED"):
                assert word not in str(error)
            # a file that is not UTF-8 text of a fair size has no lines
            assert error.line is not None or not error.key, error
        return []
    assert all(json.loads(model.text) for model in project.models.values())
    return list(project.models)


def test_the_manifest_to_mutate_is_good(tmp_path: Path) -> None:
    write(tmp_path, {"net": GOOD})
    assert check(tmp_path) == ["net-18-e", "net-19-e"]


@pytest.mark.parametrize("bad", [0, -1, float("inf"), True, None, "", "\0", [[]], {"min": 0}])
def test_a_bad_value_at_any_place_gives_errors_or_models(tmp_path: Path, bad: Any) -> None:
    good = {name: value for name, value in GOOD.items() if name != "matrix"}
    manifests = {}
    for number, path in enumerate(places(good)):
        manifest: Any = copy.deepcopy(good) | {"model": f"net{number}"}
        parent = manifest
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = bad
        manifests[f"net{number}"] = manifest
    write(tmp_path, manifests, {"defaults": {"dims": {"other": {"multiple_of": bad}}}})
    check(tmp_path)
