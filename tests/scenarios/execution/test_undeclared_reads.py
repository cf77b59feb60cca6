"""Everything a network reads by itself, through real workers and real doit processes."""

import json
from collections.abc import Callable

import pytest
from project_folder import ProjectFolder

NET = """\
import glob
import importlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from os import environ as env
from pathlib import Path

import numpy
import torch

E = os.environ
HERE = os.path.dirname(os.path.dirname(__file__))
sys.path.append(os.path.join(HERE, "../../elsewhere"))
scale = json.load(open(os.path.join(HERE, "data/scale.json")))
offset = numpy.load(os.path.join(HERE, "data/offset.npy"))
for path in sorted(glob.glob(os.path.join(HERE, "data/parts/*.txt"))):
    scale += float(open(path).read())
computed = importlib.import_module("plugins." + "com" + "puted")
far = importlib.import_module("f" + "ar")
exec(open(os.path.join(HERE, "data/code.txt")).read())
if os.path.exists(os.path.join(HERE, "data/override.json")):
    scale = 7.0
scale += len([name for name in os.listdir(os.path.join(HERE, "data/listed"))])
scale += float(Path(HERE, "data/text.txt").read_text())
with ThreadPoolExecutor() as pool:
    scale += sum(float(text) for text in pool.map(Path.read_text, [Path(HERE, "data/thread.txt")]))
scale *= float(env["READ_ALIAS"]) * float(dict(os.environ)["READ_COPY"])
scale *= float(E.get("READ_NAME" + "D", "1"))


class Net(torch.nn.Module):
    def __init__(self, weights=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.layer.load_state_dict(torch.load(weights))

    def forward(self, x):
        return self.layer(x) * (scale + float(offset) + computed.x + far.x + executed)
"""
EDITS: dict[str, Callable[[ProjectFolder], object]] = {
    "read plugins/data/scale.json": lambda p: write(p, "plugins/data/scale.json", "3"),
    "read plugins/data/code.txt": lambda p: write(p, "plugins/data/code.txt", "executed = 2"),
    "read plugins/data/parts/a.txt": lambda p: write(p, "plugins/data/parts/a.txt", "2"),
    "read plugins/data/parts/": lambda p: write(p, "plugins/data/parts/b.txt", "2"),
    "read plugins/data/override.json": lambda p: write(p, "plugins/data/override.json", "{}"),
    "read plugins/data/listed/": lambda p: write(p, "plugins/data/listed/b", ""),
    "read plugins/data/text.txt": lambda p: write(p, "plugins/data/text.txt", "2"),
    "read plugins/data/thread.txt": lambda p: write(p, "plugins/data/thread.txt", "2"),
    "read plugins/computed.py": lambda p: write(p, "plugins/computed.py", "x = 2\n"),
    "far.py": lambda p: write(p, "../elsewhere/far.py", "x = 2\n"),
    "read plugins/data/offset.npy": lambda p: save(p, "offset", "numpy.float32(2)"),
    "read weights/net.pth": lambda p: touch_weights(p),
    "read $READ_ALIAS": lambda p: p.environment.update(READ_ALIAS="2"),
    "read $READ_COPY": lambda p: p.environment.update(READ_COPY="2"),
    "read $READ_NAMED": lambda p: p.environment.update(READ_NAMED="2"),
}


def write(project: ProjectFolder, path: str, text: str) -> None:
    file = project.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def save(project: ProjectFolder, name: str, value: str) -> None:
    import numpy

    numpy.save(project.root / f"plugins/data/{name}.npy", eval(value))


def touch_weights(project: ProjectFolder, value: float = 1.0) -> None:
    import torch

    (project.root / "weights").mkdir(exist_ok=True)
    state = {"weight": torch.full((3, 4), value), "bias": torch.zeros(3)}
    torch.save(state, project.root / "weights/net.pth")


@pytest.fixture
def reading(project: ProjectFolder) -> ProjectFolder:
    """A built network that reads much without a declaration."""
    build_reading(project)
    return project


def build_reading(project: ProjectFolder) -> None:
    write(project, "plugins/models/net.py", NET)
    write(project, "plugins/computed.py", "x = 1\n")
    write(project, "../elsewhere/far.py", "x = 1\n")
    write(project, "plugins/data/scale.json", "2")
    write(project, "plugins/data/code.txt", "executed = 1")
    write(project, "plugins/data/parts/a.txt", "1")
    write(project, "plugins/data/listed/a", "")
    write(project, "plugins/data/text.txt", "1")
    write(project, "plugins/data/thread.txt", "1")
    save(project, "offset", "numpy.float32(1)")
    touch_weights(project, 0.5)
    manifest = project.add_model("m")
    text = manifest.read_text().replace(
        "plugins/models/small.py:Linear",
        "plugins/models/net.py:Net, kwargs: {weights: weights/net.pth}",
    )
    manifest.write_text(text)
    ran = project.doit("export:m")
    assert ran.code == 0, ran.out


def reasons(project: ProjectFolder, target: str = "export:m") -> list[str]:
    found = json.loads(project.buildsys("explain", target, "--json").out)["targets"]
    return [reason["text"] for one in found if one["target"] == target for reason in one["reasons"]]


def test_nothing_read_in_the_last_run_goes_stale_silently(reading: ProjectFolder) -> None:
    assert reasons(reading) == []
    result = json.loads((reading.root / "build/m/export/export.json").read_text())
    assert any("net.py:16 reads plugins/data/scale.json" in line for line in result["warnings"])
    kept = dict(reading.environment)
    taken_back: list[str] = []
    for expected, edit in EDITS.items():
        before = {
            file: file.read_bytes()
            for folder in ("plugins", "weights", "../elsewhere")
            for file in (reading.root / folder).rglob("*")
            if file.is_file()
        }
        edit(reading)
        found = reasons(reading)
        in_thread = "thread" in expected  # without a line of the user's on the stack
        line = "" if in_thread else "net.py:"
        assert any(expected in reason and line in reason for reason in found), (expected, found)
        assert not any(one in reason for one in taken_back for reason in found), (expected, found)
        reading.environment = dict(kept)
        for folder in ("plugins", "weights", "../elsewhere"):
            for file in (reading.root / folder).rglob("*"):
                if file.is_file() and file not in before:
                    file.unlink()
        for file, content in before.items():
            file.write_bytes(content)
        taken_back.append(expected)
    assert reasons(reading) == []
    assert reading.doit("export:m").ran == set()
