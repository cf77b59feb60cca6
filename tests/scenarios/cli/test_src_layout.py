"""A repository with its code below src, and a folder of code next to it."""

import os
from pathlib import Path

import pytest
from command_answers import texts
from project_folder import ProjectFolder

BLOCK = """\
from torch import nn

class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + 1 * self.conv(x).relu()
"""
NET = """\
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.block = Block(width)

    def forward(self, image):
        return self.block(self.stem(image)).mean((2, 3))
"""
FILES = {
    "src/app/__init__.py": "",
    "src/app/nets/__init__.py": "from . import blocks",
    "src/app/nets/blocks.py": BLOCK,
    "src/app/nets/net.py": NET.format(imports="from app.nets.blocks import Block"),
    "src/app/nets/rel.py": NET.format(imports="from .blocks import Block"),
    "src/app/train.py": "import wandb",
    "../beside/lib/__init__.py": "",
    "../beside/lib/net.py": NET.format(imports="from lib.parts import Block"),
    "../beside/lib/parts.py": BLOCK,
}
SOURCES = {
    "abs": "app.nets.net:Net",
    "rel": "src/app/nets/rel.py:Net",
    "out": "../beside/lib/net.py:Net",
}


@pytest.fixture
def source_layout(project: ProjectFolder) -> ProjectFolder:
    for name, text in FILES.items():
        path = Path(os.path.normpath(project.root / name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return project


def edit_unnoticed(file: Path, old: str, new: str) -> None:
    """Edit a file with equal size and time, which a bytecode cache does not notice."""
    status, text = file.stat(), file.read_text()
    assert text.count(old) == 1
    assert len(old) == len(new)
    file.write_text(text.replace(old, new))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_networks_are_found_as_python_finds_them_and_follow_their_files(
    source_layout: ProjectFolder,
) -> None:
    root = source_layout.root
    for name, source in SOURCES.items():
        done = source_layout.buildsys("new", name, "--from", source, "--input", "x=batch,3,8,8")
        assert (done.code, done.err) == (0, ""), done.err
    goldens = [f"reference:{name}" for name in SOURCES]
    built = source_layout.buildsys("build", *goldens)
    assert (built.code, built.passed) == (0, {*goldens}), built.out
    assert "outside the key" not in built.out
    before = {name: golden_bytes(root, name) for name in SOURCES}

    (root / "src/app/train.py").write_text("import mlflow")
    assert source_layout.buildsys("build", *goldens).out.startswith("everything is up to date")

    edit_unnoticed(root / "src/app/nets/blocks.py", "x + 1", "x + 9")
    assert texts(source_layout, "plan", *goldens) == {
        f"reference:{name}": ["src/app/nets/blocks.py changed"] for name in ("abs", "rel")
    }
    edit_unnoticed(root.parent / "beside/lib/parts.py", "x + 1", "x + 9")
    assert texts(source_layout, "plan", "reference:out") == {
        "reference:out": ["../beside/lib/parts.py changed"]
    }
    assert source_layout.buildsys("build", *goldens).passed == {*goldens}
    assert all(before[name] != golden_bytes(root, name) for name in SOURCES)
    code = (root / "src", root.parent / "beside")
    assert not [path for folder in code for path in folder.rglob("*.pyc")]


def golden_bytes(root: Path, model: str) -> bytes:
    return b"".join(
        path.read_bytes() for path in sorted((root / f"build/{model}/reference").rglob("*.npz"))
    )


def test_a_missing_module_of_the_repository_is_not_a_package_to_install(
    source_layout: ProjectFolder,
) -> None:
    root = source_layout.root
    (root / "libs/tools").mkdir(parents=True)
    (root / "libs/tools/draw.py").touch()
    (root / "src/app/nets/net.py").write_text("import tools.draw\n")
    arguments = ("new", "m", "--input", "x=1", "--from")
    failed = source_layout.buildsys(*arguments, "app.nets.net:Net")
    assert failed.err.endswith(
        "No module named 'tools' (src/app/nets/net.py:1); libs/ has it: write code = [\"libs\"]"
        " in [tool.buildsys] of pyproject.toml\n"
    )
    failed = source_layout.buildsys(*arguments, "src/app/train.py:Net")
    assert failed.err.endswith("'wandb' (src/app/train.py:1); pip install wandb\n")
