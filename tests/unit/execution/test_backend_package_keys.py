"""The code of another team's backend in the keys of its engines."""

from pathlib import Path
from typing import Any

import pytest
from backend_package import PACKAGE, install, registered

from buildsys.execution.action_key import KeyBuilder
from buildsys.execution.up_to_date_models import action_in, environment_of
from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model
from buildsys.store.file_digests import DigestCache
from buildsys.store.state_db import StateDb

OWN = {"engine:m:ref", "verify:m:ref", "bench:m:ref"}


def planned(**fields: Any) -> tuple[Action, ...]:
    """Return the targets of a model with engines of ONNX Runtime and of the package."""
    manifest = {
        "model": "m",
        "source": {"torchvision": "resnet18"},
        "inputs": {"x": {"shape": ("batch", 3, 8, 8)}},
        "dims": {"batch": {"min": 1, "opt": 4, "max": 8}},
        "bench": {"baselines": ()},
        "engines": ({"backend": "onnxruntime", "name": "ort"},),
    }
    spec = model_fields(manifest)
    # the union of engines was made before the package was installed
    common = {name: spec["engines"][0][name] for name in ("required", "tolerance", "toolchain")}
    engine = {**common, "gates": None, "backend": "reference", "precision": "fp32", "name": "ref"}
    spec["engines"].append({**engine, "log_level": 0, **fields})
    return plan_model(spec)


def keys(root: Path, db: StateDb) -> dict[str, dict[str, str]]:
    builder = KeyBuilder(root, root / "build", DigestCache(db), db)
    return {action.target: dict(builder.build(action).parts) for action in planned()}


def environments(root: Path, db: StateDb) -> dict[str, dict[str, str]]:
    """Return what a run with nothing to do compares."""
    builder = KeyBuilder(root, root / "build", DigestCache(db), db)
    return {
        action.target: dict(builder.build(*action_in(environment_of(action))).parts)
        for action in planned()
    }


@pytest.mark.parametrize("is_editable", [False, True])
def test_a_change_in_the_package_makes_exactly_its_engines_stale(
    tmp_path: Path, db: StateDb, monkeypatch: pytest.MonkeyPatch, is_editable: bool
) -> None:
    folder = tmp_path / ("src" if is_editable else "site-packages")
    backend = install(folder) / "backend.py"
    if is_editable:  # its RECORD has no modules
        record = next(folder.glob("*.dist-info")) / "RECORD"
        record.write_text(record.read_text().partition("\n")[0] + "\n")
    monkeypatch.syspath_prepend(folder)
    with registered(folder):
        before, seen = keys(tmp_path, db), environments(tmp_path, db)
        backend.write_text(backend.read_text() + "# changed\n")
        after, now = keys(tmp_path, db), environments(tmp_path, db)
    assert {target for target in before if before[target] != after[target]} == OWN
    assert {target for target in seen if seen[target] != now[target]} == OWN
    engine, changed = before["engine:m:ref"], after["engine:m:ref"]
    labels = {label for label in changed if engine.get(label) != changed[label]}
    file = f"source:{PACKAGE}/backend.py" if is_editable else "tool:buildsys-reference (files)"
    assert labels == {file}
    assert not any(label.startswith("code:buildsys.backends.onnx") for label in engine)
    assert engine["tool:buildsys-reference"] == "1.0"
    assert "tool:onnx" in engine
    assert "tool:buildsys" not in engine
