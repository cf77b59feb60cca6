"""A project of twenty manifests: only edited, added, renamed and broken ones matter.

One model is built by its real stages. The others are copied into the build folder through the
executor (``tests/bench/_scale_project.py``), as building them all would take minutes.
"""

import sys
from pathlib import Path

import pytest
from project_folder import ProjectFolder, Ran
from ready_project import TorchProject

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from _scale_project import FIRST, model_name, record_copies, write_manifests

COUNT = 20
STAGES = ("export", "reference", "simplify", "validate", "engine", "verify", "bench", "report")
UP_TO_DATE = f"everything is up to date ({8 * COUNT} targets)\n"
ONE, OTHER = model_name(1), model_name(COUNT - 1)


def targets_of(model: str) -> set[str]:
    variants = {
        stage: ":ort-cpu" if stage in ("engine", "verify", "bench") else "" for stage in STAGES
    }
    return {f"{stage}:{model}{variant}" for stage, variant in variants.items()}


@pytest.fixture
def many(empty_place: TorchProject) -> ProjectFolder:
    """A project in which all was found fresh, and in a second run remembered as that."""
    write_manifests(empty_place.root, COUNT)
    assert empty_place.doit(f"build:{FIRST}").code == 0
    record_copies(empty_place.root)
    assert empty_place.doit() == Ran(0, UP_TO_DATE, "")
    assert empty_place.doit() == Ran(0, UP_TO_DATE, "")
    return empty_place


def manifest(project: ProjectFolder, model: str) -> Path:
    return project.root / f"configs/models/{model}.yaml"


def test_an_edited_an_added_and_a_broken_manifest(many: ProjectFolder) -> None:
    many.edit(f"configs/models/{ONE}.yaml", "min_samples: 1", "min_samples: 2")
    again = many.doit()
    assert again.code == 0, again.out + again.err
    assert again.passed == {f"bench:{ONE}:ort-cpu", f"report:{ONE}"}
    assert f"2 passed, {8 * COUNT - 2} fresh in" in again.out

    text = manifest(many, OTHER).read_text().replace(OTHER, "added")
    manifest(many, "added").write_text(text)
    assert many.doit().passed == targets_of("added")
    assert many.doit() == Ran(0, f"everything is up to date ({8 * (COUNT + 1)} targets)\n", "")
    manifest(many, "added").unlink()

    many.edit(f"configs/models/{ONE}.yaml", "min_samples: 2", "min_sample: 2")
    rest = f"everything is up to date ({8 * (COUNT - 1)} targets)\n"
    for arguments in (
        (),
        ("build",),
        ("bench",),
        ("plan",),
        (ONE,),
        ("plan", ONE),
        ("explain", "bench"),
    ):
        wrong = many.doit(*arguments)
        assert wrong.code == 3
        assert f"configs/models/{ONE}.yaml:" in wrong.out + wrong.err
        assert wrong.out.endswith(rest) == (arguments in ((), ("build",)))
    nothing = "everything is up to date: nothing would run\n"
    assert many.buildsys("plan", "m00002") == Ran(0, nothing, "")
    assert many.buildsys("explain", "report:m00002", "m00003:ort-cpu").code == 0
    many.edit(f"configs/models/{ONE}.yaml", "min_sample: 2", "min_samples: 2")
    assert many.doit() == Ran(0, UP_TO_DATE, "")
