"""The examples of docs/remedies, run exactly as printed."""

import re
import shutil
from pathlib import Path

import pytest
from example_pages import replay, run_page
from project_folder import REPOSITORY, ProjectFolder, Ran

PAGES = sorted(
    path
    for path in (REPOSITORY / "docs" / "remedies").glob("*.md")
    if path.name not in ("README.md", "operators.md")  # its example is a tutorial
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_work(
    page: Path, empty_place: ProjectFolder, operator_table: tuple[Path, Ran]
) -> None:
    for name in ("dodo.py", "pyproject.toml", "plugins/models/nms.py"):
        file = empty_place.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, file)
    (empty_place.root / "configs/models").mkdir(parents=True)
    shutil.copytree(operator_table[0], empty_place.root / ".buildsys/operators")
    empty_place.environment["BUILDSYS_TRIALS"] = str(int(page.stem == "opset"))
    assert run_page(empty_place, page), f"{page.name} has no example"


def test_a_page_with_wrong_output_fails(project: ProjectFolder) -> None:
    project.add_model("lin")
    assert replay(project, "$ doit list\nbuild:lin ...\n", {}) == 1
    with pytest.raises(AssertionError, match="did not print"):
        replay(project, "$ doit list\nbuild:other\n", {})
    with pytest.raises(AssertionError, match="exit code 3"):
        replay(project, "$ doit list other\n", {})


def test_the_index_lists_every_page() -> None:
    index = (REPOSITORY / "docs" / "remedies" / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\((\w+)\.md\)", index))
    assert listed == {*(page.stem for page in PAGES), "operators"}
