"""Real runs in a project whose build folder, or a folder of it, became a link."""

import shutil
from collections.abc import Iterator

import pytest
from ready_project import ReadyProject

MANIFEST = """\
model: tiny
commands:
  - {name: a, run: [sh, -c, "echo good > o; . $ROOT/attack"], outputs: {o: o}}
"""
SWAP = "cd ROOT; mv build gone; ln -s foreign build\n"
LOG = "ln -f ROOT/foreign/f ROOT/build/tiny/command/a/command.log\n"
FILES = ("f", "report/index.html", "nightly/nightly.json", "tiny/command/a/o", ".tmp/a@b-abcdefgh")
COMMANDS = (("build", "--force"), ("nightly",), ("pages",), ("clean",), ("doit", "clean"))


@pytest.fixture
def project(ready_place: ReadyProject) -> Iterator[ReadyProject]:
    """Make a built project with one command, and a folder of precious files."""
    with ready_place.cleared():
        ready_place.create()
        manifest = MANIFEST.replace("$ROOT", str(ready_place.root))
        (ready_place.root / "configs/models/tiny.yaml").write_text(manifest)
        for name in FILES:
            path = ready_place.root / "foreign" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("precious")
        (ready_place.root / "attack").write_text("")
        code, said = run(ready_place, "nightly")
        assert code == 0, said
        yield ready_place


def run(project: ReadyProject, *words: str) -> tuple[int, str]:
    command = project.doit if words[0] == "doit" else project.buildsys
    ran = command(*(words[1:] if words[0] == "doit" else words))
    assert "Traceback" not in ran.out + ran.err
    return ran.code, ran.out + ran.err


def check_foreign(project: ReadyProject) -> None:
    """Check that the foreign folder has its files, unchanged, and nothing else."""
    folder = project.root / "foreign"
    texts = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    assert {name: path.read_text() for name, path in texts.items()} == dict.fromkeys(
        FILES, "precious"
    )


@pytest.mark.parametrize("place", ["build", "build/report", "build/nightly", "build/tiny"])
def test_nothing_is_written_or_removed_through_a_link(project: ReadyProject, place: str) -> None:
    shutil.rmtree(project.root / place)
    (project.root / place).symlink_to(project.root / place.replace("build", "foreign", 1))
    for words in COMMANDS:
        code, said = run(project, *words)
        check_foreign(project)
        assert f"/{place} is a link, and may lead anywhere" in said or code == 0, said
    assert place != "build" or code == 3


def test_a_program_that_replaces_the_build_folder_fails(project: ReadyProject) -> None:
    (project.root / "attack").write_text(SWAP.replace("ROOT", str(project.root)))
    code, said = run(project, "nightly", "--all")
    assert (code, "removed or replaced its working folder" in said) == (2, True)
    assert "/build is a link, and may lead anywhere" in said
    check_foreign(project)


def test_a_log_never_goes_into_another_file(project: ReadyProject) -> None:
    (project.root / "attack").write_text(LOG.replace("ROOT", str(project.root)))
    for _ in range(2):
        assert run(project, "build", "--force")[0] == 0
        check_foreign(project)
    assert (project.root / "foreign/f").stat().st_nlink == 2
