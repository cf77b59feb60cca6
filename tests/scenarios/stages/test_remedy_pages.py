"""The examples of docs/remedies, run exactly as printed.

A fenced block with the first line ``# file: PATH`` (``// file: PATH`` in C) is a file of a new
project; a later block with the same path replaces it. A ``console`` block is a terminal: each line
after ``$ `` runs there, and all following lines except ``...`` must appear in its output, in that
order; ``...`` within a line matches anything.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from project_folder import REPOSITORY, ProjectFolder

PAGES = sorted(
    path for path in (REPOSITORY / "docs" / "remedies").glob("*.md") if path.name != "README.md"
)
_BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?:#|//) file: (?P<path>\S+)\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_work(page: Path, empty_place: ProjectFolder) -> None:
    project = empty_place
    for name in ("dodo.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, project.root)
    (project.root / "configs/models").mkdir(parents=True)
    ran = 0
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        named = _FILE.match(block["text"])
        if named:
            file = project.root / named["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"][named.end() :], encoding="utf-8")
        elif block["language"] == "console":
            ran += replay(project, block["text"])
    assert ran, f"{page.name} has no example"


def replay(project: ProjectFolder, terminal: str) -> int:
    """Run the commands of a console block; return their number."""
    commands = [part.splitlines() for part in re.split(r"^\$ ", terminal, flags=re.MULTILINE)[1:]]
    for command, *expected in commands:
        program, *arguments = shlex.split(command)
        assert program == "doit", command
        done = project.doit(*arguments)
        printed = iter(f"{done.out}\n{done.err}".splitlines())
        for line in (line for line in expected if line.strip() not in ("", "...")):
            pattern = ".*".join(re.escape(part.strip()) for part in line.split("..."))
            assert any(re.search(pattern, said) for said in printed), (
                f"`{command}` did not print {line!r} (in this order), but\n{done.out}\n{done.err}"
            )
    return len(commands)


def test_a_page_with_wrong_output_fails(project: ProjectFolder) -> None:
    project.add_model("lin")
    assert replay(project, "$ doit list\nbuild:lin ...\n") == 1
    with pytest.raises(AssertionError, match="did not print"):
        replay(project, "$ doit list\nbuild:other\n")


def test_the_index_lists_every_page() -> None:
    index = (REPOSITORY / "docs" / "remedies" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\((\w+)\.md\)", index)) == {page.stem for page in PAGES}
