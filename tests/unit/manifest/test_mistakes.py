"""Mistakes in manifests: every error with its position, sentence and remedy.

A section of ``mistakes/*.txt`` has a title, a manifest with ``CASE``, and cases: the lines that
replace it, then each error, indented. ``@ FILE`` names another file than the model's manifest.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from manifest_files import NET, ProjectFolder

from buildsys.errors import ManifestErrors

INDENT = "    "
MODEL = "configs/models/net.yaml"
FILES = {
    MODEL: NET,
    "a.npz": "",
    "bert/config.json": "{}",
    "graph.py": "def make(): ...\n",
    "net.onnx": "onnx",
    "pack/__init__.py": "",
    "pack/net.py": "def make(): ...\n",
    "plugins/broken.py": "x = 1\ndef make(:\n",
    "plugins/folder.py/x": "",
    "plugins/hooks/bad.py": "def f(:\n",
    "plugins/hooks/hook.py": "def change(graph): return graph\n",
    "plugins/net.py": "def define(network, trt): ...\ndef compute(x): ...\ndef make(): ...\n",
    "plugins/ops/swish.c": "int swish;\n",
    "plugins/ops/swish.py": "def swish(): ...\n",
    "plugins/s.py": "def f(g, x): ...\n",
    "w.pth": "weights",
}


class Mistake(NamedTuple):
    file: str
    text: str
    errors: list[str]


def mistakes(table: Path) -> Iterator[tuple[str, Mistake]]:
    """Yield the title and content of each case."""
    for section in table.read_text().removeprefix("# ").split("\n\n# "):
        head, _, cases = section.partition("\n\n")
        title, _, template = head.partition("\n")
        file = MODEL
        if template.startswith("@ "):
            file, _, template = template.removeprefix("@ ").partition("\n")
        case: list[str] = []
        errors: list[str] = []
        for line in [*cases.splitlines(), "end"]:
            if line.startswith(INDENT):
                errors.append(line.removeprefix(INDENT))
                continue
            if errors:
                text = template.replace("CASE", "\n".join(case))
                yield f"{title}: {case[-1]}", Mistake(file, f"{text}\n", errors)
                case, errors = [], []
            case.append(line)


TABLES = sorted(Path(__file__).with_name("mistakes").glob("*.txt"))
CASES = [(name, mistake) for table in TABLES for name, mistake in mistakes(table)]


@pytest.mark.parametrize("mistake", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_a_mistake_gives_these_errors(project: ProjectFolder, mistake: Mistake) -> None:
    for name, text in FILES.items():
        project.write(name, text)
    (project.root / "link.py").symlink_to(Path(__file__))  # outside of the project
    project.write(mistake.file, mistake.text)
    with pytest.raises(ManifestErrors) as caught:
        project.load()
    lines = str(caught.value).splitlines()
    assert [line.removeprefix(f"{mistake.file}:") for line in lines] == mistake.errors
