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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

HERE = os.path.dirname(os.path.dirname(__file__))
scale = json.load(open(os.path.join(HERE, "data/scale.json")))
for path in sorted(glob.glob(os.path.join(HERE, "data/parts/*.txt"))):
    scale += float(open(path).read())
computed = importlib.import_module("plugins." + "com" + "puted")
if os.path.exists(os.path.join(HERE, "data/override.json")):
    scale = 7.0
with ThreadPoolExecutor() as pool:
    scale += sum(float(text) for text in pool.map(Path.read_text, [Path(HERE, "data/thread.txt")]))
scale *= float(dict(os.environ)["READ_COPY"])


class Net(torch.nn.Module):
    def __init__(self, weights=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.layer.load_state_dict(torch.load(weights))

    def forward(self, x):
        return self.layer(x) * (scale + computed.x)
"""
EDITS: dict[str, Callable[[ProjectFolder], object]] = {
    "read plugins/data/scale.json": lambda p: write(p, "plugins/data/scale.json", "3"),
    "read plugins/data/parts/a.txt": lambda p: write(p, "plugins/data/parts/a.txt", "2"),
    "read plugins/data/parts/": lambda p: write(p, "plugins/data/parts/b.txt", "2"),
    "read plugins/data/override.json": lambda p: write(p, "plugins/data/override.json", "{}"),
    "read plugins/data/thread.txt": lambda p: write(p, "plugins/data/thread.txt", "2"),
    "read plugins/computed.py": lambda p: write(p, "plugins/computed.py", "x = 2\n"),
    "read weights/net.pth": lambda p: save_weights(p, 1.0),
    "read $READ_COPY": lambda p: p.environment.update(READ_COPY="2"),
}


def write(project: ProjectFolder, path: str, text: str) -> None:
    file = project.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def save_weights(project: ProjectFolder, value: float) -> None:
    import torch

    (project.root / "weights").mkdir(exist_ok=True)
    state = {"weight": torch.full((3, 4), value), "bias": torch.zeros(3)}
    torch.save(state, project.root / "weights/net.pth")


@pytest.fixture
def reading(project: ProjectFolder) -> ProjectFolder:
    """A built network that reads much without a declaration."""
    write(project, "plugins/models/net.py", NET)
    write(project, "plugins/computed.py", "x = 1\n")
    write(project, "plugins/data/scale.json", "2")
    write(project, "plugins/data/parts/a.txt", "1")
    write(project, "plugins/data/thread.txt", "1")
    save_weights(project, 0.5)
    manifest = project.add_model("m")
    text = manifest.read_text().replace(
        "plugins/models/small.py:Linear",
        "plugins/models/net.py:Net, kwargs: {weights: weights/net.pth}",
    )
    manifest.write_text(text)
    ran = project.doit("export:m")
    assert ran.code == 0, ran.out
    return project


def reasons(project: ProjectFolder, target: str = "export:m") -> list[str]:
    found = json.loads(project.buildsys("explain", target, "--json").out)["targets"]
    return [reason["text"] for one in found if one["target"] == target for reason in one["reasons"]]


def test_nothing_read_in_the_last_run_goes_stale_silently(reading: ProjectFolder) -> None:
    assert reasons(reading) == []
    result = json.loads((reading.root / "build/m/export/export.json").read_text())
    assert any("net.py:11 reads plugins/data/scale.json" in line for line in result["warnings"])
    kept = dict(reading.environment)
    taken_back: list[str] = []
    for expected, edit in EDITS.items():
        before = {
            file: file.read_bytes()
            for folder in ("plugins", "weights")
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
        for folder in ("plugins", "weights"):
            for file in (reading.root / folder).rglob("*"):
                if file.is_file() and file not in before:
                    file.unlink()
        for file, content in before.items():
            file.write_bytes(content)
        taken_back.append(expected)
    assert reasons(reading) == []
    assert reading.doit("export:m").ran == set()
