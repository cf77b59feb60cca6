"""Selection of models by tag, for runs and queries."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_doubles import Doit, make_session

from buildsys.cli.session import Session
from buildsys.errors import UsageError
from buildsys.plan.project_plan import model_of


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """Models a and b with tags, and c without."""
    session, _ = make_session(tmp_path, "a", "b", "c")
    session.project.models["a"].data["tags"] = ["nightly", "vision"]
    session.project.models["b"].data["tags"] = ["nightly"]
    return session


def models(targets: set[str]) -> set[str]:
    return {model_of(target) for target in targets}


def test_a_tag_selects_all_targets_of_its_models_and_plans_no_other(session: Session) -> None:
    assert session.select([], tags=["vision"]) == set(session.targets_of("a"))
    assert list(session.actions._planned) == ["a"]
    assert models(session.select([], tags=["vision", "nightly"])) == {"a", "b"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("build", ["build:a", "build:b"]),
        ("export", ["export:a", "export:b"]),
        ("verify:*:ort", ["verify:a:ort", "verify:b:ort"]),
        ("b:ort", ["engine:b:ort"]),
    ],
)
def test_names_and_tags_select_what_both_name(session: Session, name: str, full: list[str]) -> None:
    assert session.full_names([name], ["nightly"]) == full


@pytest.mark.parametrize(
    ("names", "tags", "message"),
    [
        ([], ["nigthly"], "there is no tag 'nigthly'; nearest: nightly"),
        ([], ["nightly", "x"], "there is no tag 'x'; tags: nightly, vision"),
        (["c"], ["nightly"], "nothing of 'c' has the tag nightly; models with it: a, b"),
        (["d"], ["nightly"], "there is no target 'd'; `doit list --all` lists all targets"),
    ],
)
def test_an_impossible_selection_is_one_sentence(
    session: Session, names: list[str], tags: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        session.select(names, tags=tags)
    assert str(caught.value) == message


def test_without_any_tag_the_error_says_so(tmp_path: Path) -> None:
    session, _ = make_session(tmp_path, "a")
    with pytest.raises(UsageError, match="there is no tag 'x'; no manifest has tags"):
        session.select([], tags=["x"])


@pytest.fixture
def tagged(doit: Doit) -> Doit:
    doit.models = ("a", "b", "c")
    doit.tags = {"a": ["nightly"], "b": ["weekly"], "c": ["nightly"]}
    return doit


@pytest.mark.parametrize(
    ("arguments", "built"),
    [
        (("--tag", "nightly"), {"a", "c"}),
        (("--tag=nightly", "--tag=weekly"), {"a", "b", "c"}),
        (("run", "-a", "--tag", "weekly"), {"b"}),
        (("build:a", "--tag", "nightly", "-r", "json"), {"a"}),
    ],
)
def test_a_run_builds_the_models_of_a_tag(
    tagged: Doit, arguments: tuple[str, ...], built: set[str]
) -> None:
    assert tagged(*arguments)[0] == 0
    assert models(set(tagged.session.finished)) == built


def test_a_run_builds_one_stage_of_the_models_of_a_tag(tagged: Doit) -> None:
    assert tagged("export", "--tag", "nightly")[0] == 0
    assert set(tagged.session.finished) == {"export:a", "export:c"}


def test_an_unknown_tag_runs_nothing(tagged: Doit) -> None:
    code, out = tagged("--tag", "nihgtly")
    assert (code, tagged.session.finished) == (3, {})
    assert "there is no tag 'nihgtly'; nearest: nightly" in out


def test_a_list_shows_the_models_or_targets_of_a_tag(tagged: Doit) -> None:
    code, out = tagged("list", "--tag", "nightly", "-q")
    assert (code, out.split()) == (0, ["build:a", "build:c"])
    code, out = tagged("list", "--all", "--tag", "weekly", "-q")
    assert (code, models(set(out.split()))) == (0, {"b"})
    assert len(out.split()) == len(tagged.session.actions.of("b"))
