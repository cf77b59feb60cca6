"""Selection of models by tag and owner, for runs and queries."""

from pathlib import Path

import pytest
from cli_doubles import Doit, make_session
from documented_commands import options_of

from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter
from buildsys.errors import UsageError
from buildsys.project.plan import model_of


@pytest.fixture
def session(tmp_path: Path) -> BuildSession:
    """Models a and b with tags and owners, and c without."""
    session, _ = make_session(tmp_path, "a", "b", "c")
    session.project.models["a"].data |= {"tags": ["nightly", "vision"], "owner": "Ann"}
    session.project.models["b"].data |= {"tags": ["nightly"], "owner": "the B team"}
    return session


def only(*tags: str, owners: tuple[str, ...] = ()) -> ModelFilter:
    return ModelFilter(tags, owners)


def models(targets: set[str]) -> set[str]:
    return {model_of(target) for target in targets}


def test_a_tag_selects_all_targets_of_its_models_and_plans_no_other(session: BuildSession) -> None:
    assert session.select([], only=only("vision")) == set(session.targets_of("a"))
    assert list(session.actions._planned) == ["a"]
    assert models(session.select([], only=only("vision", "nightly"))) == {"a", "b"}


def test_an_owner_selects_models_and_with_a_tag_both_must_match(session: BuildSession) -> None:
    assert models(session.select([], only=only(owners=("Ann",)))) == {"a"}
    assert models(session.select([], only=only(owners=("Ann", "the B team")))) == {"a", "b"}
    assert models(session.select([], only=only("nightly", owners=("the B team",)))) == {"b"}


@pytest.mark.parametrize(
    ("names", "chosen", "message"),
    [
        ([], only("nigthly"), "there is no tag 'nigthly'; nearest: nightly"),
        ([], only("nightly", "x"), "there is no tag 'x'; tags: nightly, vision"),
        ([], only(owners=("Anna",)), "there is no owner 'Anna'; nearest: Ann"),
        ([], only(owners=("",)), "there is no owner ''; owners: Ann, the B team"),
        (
            [],
            only("vision", owners=("the B team",)),
            "no model has the tag vision and the owner the B team; choose another --owner or --tag",
        ),
        (["c"], only("nightly"), "nothing of 'c' has the tag nightly; models with it: a, b"),
        (["d"], only("nightly"), "there is no target 'd'; `buildsys list --all` lists all targets"),
    ],
)
def test_an_impossible_selection_is_one_sentence(
    session: BuildSession, names: list[str], chosen: ModelFilter, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        session.select(names, only=chosen)
    assert str(caught.value) == message


@pytest.fixture
def tagged(doit: Doit) -> Doit:
    doit.models = ("a", "b", "c")
    doit.tags = {"a": ["nightly"], "b": ["weekly"], "c": ["nightly"]}
    doit.owners = {"c": "Ann"}
    return doit


@pytest.mark.parametrize(
    ("arguments", "built"),
    [
        (("--tag", "nightly"), {"a", "c"}),
        (("--tag=nightly", "--tag=weekly"), {"a", "b", "c"}),
        (("--force", "--tag", "weekly"), {"b"}),
        (("a", "--tag", "nightly", "--json"), {"a"}),
        (("--owner", "Ann", "--tag", "nightly"), {"c"}),
    ],
)
def test_a_run_builds_the_models_of_a_tag(
    tagged: Doit, arguments: tuple[str, ...], built: set[str]
) -> None:
    assert tagged("build", *arguments)[0] == 0
    assert models(set(tagged.session.finished)) == built


def test_clean_removes_the_files_and_records_of_an_owner_only(tagged: Doit) -> None:
    tagged.build_all()
    assert tagged.run_buildsys("clean", "--owner", "Ann")[0] == 0
    assert {path.name for path in (tagged.root / "build").iterdir()} == {"a", "b", "report"}
    assert tagged.executor.forgotten == []
    assert tagged.run_buildsys("clean", "--tag", "nightly", "--forget")[0] == 0
    assert models(set(tagged.executor.forgotten)) == {"a", "c"}


@pytest.mark.parametrize(
    "name",
    ["build", "clean", "compare", "explain", "list", "nightly", "pages", "plan", "publish"],
)  # fmt: skip
def test_every_command_on_several_models_has_the_filter(name: str) -> None:
    assert {"--tag", "--owner"} <= options_of(name)
