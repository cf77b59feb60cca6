"""Incremental builds of random manifests, compared with clean builds.

Planning, keys, ledger, locks and publishing are real. Each stage is replaced by a function that
derives its outputs from everything that the real stage reads: options, inputs, the user's files.
It reads weights with torch and drops some of the information, so that outputs often stay the same.
"""

import json
import os
import re
import shutil
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from buildsys.execution.executor import Executor
from buildsys.execution.local_runs import Folders
from buildsys.plan import dependencies
from buildsys.plan.action import Action
from buildsys.project.model import model_fields
from buildsys.project.plan import plan_model
from buildsys.store.object_store import Store
from buildsys.system import versions
from buildsys.workers.job import Job
from buildsys.workers.pool import JobReply

ENGINES = {
    "ort": {"backend": "onnxruntime"},
    "half": {"backend": "onnxruntime", "precision": "fp16"},
    "rtx": {"backend": "tensorrt_rtx"},
}
CHOICES: dict[str, list[Any]] = {  # a dotted field of the world -> its values
    "seed": [0, 1, 2],
    "hidden": [3, 4],
    "weights": [True, False],
    "opset": [17, 18],
    "max": [4, 8],
    "data": [None, {"npz": "data/x.npz"}, {"constant": 1.0}],
    "tool": ["onnxsim", "none"],
    "rtol": [1e-4, 1e-3],
    "fp16": [1e-2, 2e-2],
    "duration": [1, 2],
    "baselines": [["torch"], []],
    "description": ["", "a net"],
    "spinning": [True, False],
    "engines": [["ort"], ["ort", "half"], ["rtx", "half"], []],
    "imports": [True, False],  # whether net.py imports blocks.py
    "comment": [0, 1],  # in net.py, which no output shows
    "block": [0, 1, 2],
    "array": [0, 1],
    "tensor": [0, 1, 2],
    "saved": [0, 1],  # another entry of the checkpoint: other bytes, the same tensors
}
WORLDS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in CHOICES.items()})
SET = st.sampled_from(sorted(CHOICES)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(CHOICES[name]))
)
EDITS = st.one_of(
    SET,
    SET,
    st.tuples(st.just("back"), st.integers(0, 5)),  # to an earlier world
    st.tuples(
        st.sampled_from(["delete", "spoil", "touch"]), st.integers(0, 99)
    ),  # one file below build/
)
World = dict[str, Any]
PLAIN = {name: values[0] for name, values in CHOICES.items()}
EACH_ALONE = [
    [(name, values[1])] for name, values in CHOICES.items() if name not in ("weights", "imports")
]
DAMAGE = [
    [("touch", 3)],
    [("delete", 7)],
    [("spoil", 11)],
    [("back", 0)],
    [("imports", False)],
    [("weights", False)],
]


def manifest(world: World) -> dict[str, Any]:
    source = {
        "python": "plugins/net.py:make",
        "seed": world["seed"],
        "kwargs": {"hidden": world["hidden"]},
    }
    extra = {"spinning": world["spinning"]}
    return {
        "model": "m",
        "description": world["description"],
        "source": {**source, **({"weights": {"file": "w.pth"}} if world["weights"] else {})},
        "inputs": {"x": {"shape": ["batch", 4], "data": world["data"]}},
        "outputs": {"y": {"shape": ["batch", 3]}},
        "dims": {"batch": {"min": 1, "opt": 2, "max": world["max"]}},
        "export": {"opset": world["opset"]},
        "simplify": {"tool": world["tool"]},
        "validate": {"rtol": world["rtol"]},
        "verify": {"fp16": {"rtol": world["fp16"]}},
        "bench": {"duration": world["duration"], "baselines": world["baselines"]},
        "engines": [
            {**ENGINES[name], "name": name, **(extra if name == "ort" else {})}
            for name in world["engines"]
        ],
    }


def write_files(root: Path, world: World) -> None:
    """Write the changed files only, as an editor would."""
    (root / "plugins").mkdir(parents=True, exist_ok=True)
    (root / "data").mkdir(exist_ok=True)
    imports = "import blocks" if world["imports"] else ""
    write(root / "plugins/net.py", f"{imports}\n# comment {world['comment']}\n".encode())
    write(root / "plugins/blocks.py", f"x = {world['block']}\n".encode())
    array = root / "data/new.npz"
    np.savez(array, x=np.full((8, 4), world["array"], np.float32))
    write(root / "data/x.npz", array.read_bytes())
    fresh = root / "new.pth"
    torch.save(
        {"state_dict": {"w": torch.full((2, 3), float(world["tensor"]))}, "epoch": world["saved"]},
        fresh,
    )
    write(root / "w.pth", fresh.read_bytes())


def write(path: Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


def plan(world: World) -> dict[str, Action]:
    return {action.target: action for action in plan_model(model_fields(manifest(world)))}


_parsed = cache(dependencies.parse_python)
_code: dict[tuple[str, ...], dict[str, str | None]] = {}  # our own, which no step changes
_digests: dict[str, Any] = {}  # of the same files
_identities: dict[str, str] = {}  # of installed packages, which no step changes
_identity = versions._identity


def known_identity(folder: str, texts: Any) -> str:
    if folder not in _identities:
        _identities[folder] = _identity(folder, texts)
    return _identities[folder]


class StandIns:
    """Runs stand-ins of the stages in this thread."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(
        self, job: Job, *, log: Path, timeout_s: float | None = None, on_event: Any = None
    ) -> JobReply:
        self.ran.append(job.target)
        log.write_text("")
        seen: dict[str, Any] = {role: digest(path) for role, path in job.inputs.items()}
        network = job.options.get("network", job.options)
        if "source" in network:
            text = (job.project / "plugins/net.py").read_text()
            seen["net"] = re.sub("#.*", "", text)
            if "import blocks" in text:
                seen["block"] = (job.project / "plugins/blocks.py").read_text()
            if network["source"]["weights"]:
                file = job.project / network["source"]["weights"]["file"]
                seen["weights"] = torch.load(file)["state_dict"]["w"].tolist()
        for data in job.options.get("data", {}).values():
            if data and "npz" in data:
                seen["array"] = np.load(job.project / data["npz"])["x"].tolist()
        options = {**job.options}
        if job.stage in ("simplify", "convert"):  # what they are asked often changes nothing
            options = {"precision": options.get("precision")}
        if job.stage == "export":
            options = {
                **options,
                "source": {**options["source"], "seed": options["source"]["seed"] // 2},
            }
        content = json.dumps([seen, options], sort_keys=True)
        for role, path in job.outputs.items():
            if not role.endswith(".data") and role != "result":
                path.write_text(f"{role} {content}")
        job.outputs["result"].write_text(json.dumps([seen, dict(job.options)], sort_keys=True))
        return JobReply("passed", "", "", {}, 0.0)


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def build(root: Path, world: World) -> tuple[dict[str, str], list[str]]:
    """Bring everything up to date; return all keys and the targets run."""
    actions = plan(world)
    pool: Any = StandIns()
    state = root / ".buildsys"
    store = Store(state / "store")
    executor = Executor(Folders(root, root / "build", state), actions, pool=pool, store=store)
    executor._keys._code = _code
    for target in actions:
        if not executor.up_to_date_status(target):
            executor.run(target)
    keys = {target: executor._keys.build(action).digest for target, action in actions.items()}
    assert all(executor.up_to_date_status(target) for target in actions)
    executor.close()
    return keys, pool.ran


def outputs(root: Path, world: World) -> dict[str, str]:
    actions = plan(world)
    paths = {ref.path for action in actions.values() for ref in action.outputs.values()}
    return {
        path: digest(root / "build" / path)
        for path in sorted(paths)
        if (root / "build" / path).exists()
    }


def damage(root: Path, how: str, number: int) -> None:
    files = sorted(
        path for path in (root / "build").rglob("*") if path.is_file() and path.suffix != ".log"
    )
    file = files[number % len(files)]
    if how == "delete":
        file.unlink()
    elif how == "spoil":
        file.write_text("spoilt")
    else:
        os.utime(file)


@settings(
    max_examples=int(os.environ.get("BUILDSYS_TEST_EXAMPLES", "4")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(WORLDS, st.lists(st.lists(EDITS, min_size=1, max_size=2), min_size=1, max_size=5))
@example(
    first=PLAIN | {"engines": ["ort", "half"], "data": {"npz": "data/x.npz"}},
    steps=EACH_ALONE + DAMAGE,
)
def test_incremental_builds_equal_clean_builds(
    first: World, steps: list[list[tuple[str, Any]]]
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="buildsys-property-"))
    patch = pytest.MonkeyPatch()
    patch.setenv("BUILDSYS_MACHINE_LOCK", str(folder))  # do not wait for other benchmarks
    # a new project parses our modules and reads installed packages: most of a clean build's time
    patch.setattr(dependencies, "parse_python", _parsed)
    patch.setattr(versions, "_identity", known_identity)
    clean_builds: dict[str, tuple[dict[str, str], dict[str, str]]] = {}  # by world
    try:
        root = folder / "project"
        world, past = dict(first), [dict(first)]
        write_files(root, world)
        _, ran = build(root, world)
        assert len(ran) == len(plan(world))
        for number, edits in enumerate(steps):
            for name, value in edits:
                if name == "back":
                    world = dict(past[value % len(past)])
                elif name in CHOICES:
                    world[name] = value
                else:
                    damage(root, name, value)
            past.append(dict(world))
            write_files(root, world)
            keys, _ = build(root, world)
            clean, inputs = folder / f"clean-{number}", json.dumps(world, sort_keys=True)
            if inputs not in clean_builds:
                write_files(clean, world)
                clean_builds[inputs] = build(clean, world)[0], outputs(clean, world)
            assert clean_builds[inputs] == (keys, outputs(root, world))
    finally:
        patch.undo()
        shutil.rmtree(folder)
