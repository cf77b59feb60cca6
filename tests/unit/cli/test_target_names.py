"""One syntax of target names for all commands."""

from pathlib import Path

import pytest
from cli_doubles import make_session

from buildsys.cli.graph_files import graph_action
from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildSession:
    """Models a and b; the model ``export`` is called like a stage."""
    monkeypatch.chdir(tmp_path)
    return make_session(tmp_path, "a", "b", "export")[0]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("build", "build"),
        ("simplify", "simplify"),
        ("a", "build:a"),
        ("build:a", "build:a"),
        ("a:build", "build:a"),
        ("export:a", "export:a"),
        ("a:export", "export:a"),
        ("a:engine", "engine:a"),
        ("a:ort", "engine:a:ort"),
        ("a:verify:ort", "verify:a:ort"),
        ("export:export", "export:export"),
        ("export:ort", "engine:export:ort"),
        ("c", None),
        ("a:b", None),
        ("a:calibrate", None),
        ("ort:a", None),
        ("a:verify:nothing", None),
        ("verify:a:ort:x", None),
        ("a:", None),
        (":a", None),
        ("", None),
        ("build/a/export/model.onnx", "export:a"),
        ("build/a/engine/ort/engine.onnx", "engine:a:ort"),
        ("build/a/engine/ort/", "engine:a:ort"),
        ("build/a/engine/ort/engine.log", "engine:a:ort"),
        ("build/a", "build:a"),
        ("configs/models/a.yaml", "build:a"),
        ("build/a/engine/ort/other.onnx", None),
        ("configs/models/c.yaml", None),
        ("../build/a", None),
    ],
)
def test_every_spelling_has_one_full_name(
    session: BuildSession, name: str, full: str | None
) -> None:
    assert session.full_name(name) == full


def test_a_path_names_what_writes_it(session: BuildSession, tmp_path: Path) -> None:
    assert session.targets_of("build/a/export") == ["export:a"]
    assert session.targets_of("build/a/verify") == ["verify:a:ort", "verify:a:rtx"]
    assert session.targets_of(f"{tmp_path}/build/b/") == list(session.actions.of("b"))
    assert set(session.targets_of("configs/models")) == set(session.actions)
    assert set(session.targets_of(".")) == set(session.actions)
    with pytest.raises(UsageError, match=r"nearest: configs/models/a\.yaml"):
        session.select(["configs/models/aa.yaml"])
    with pytest.raises(UsageError, match=r"nearest: build/a/engine/ort/engine\.onnx"):
        session.select(["build/a/engine/ort/engin.onnx"])


def test_only_the_named_model_is_planned(session: BuildSession) -> None:
    for name in ("a", "a:ort", "a:report", "simplify:a", "verify:a:ort", "a:nothing"):
        session.full_name(name)
    assert list(session.actions._planned) == ["a"]


@pytest.mark.parametrize(
    ("pattern", "targets"),
    [
        ("engine:*:ort", ["engine:a:ort", "engine:b:ort", "engine:export:ort"]),
        ("*:b:ort", ["engine:b:ort", "verify:b:ort", "bench:b:ort"]),
        ("a:simp*", ["simplify:a"]),
        ("b:rt*", ["engine:b:rtx"]),
        ("x*", []),
    ],
)
def test_a_pattern_names_targets(session: BuildSession, pattern: str, targets: list[str]) -> None:
    assert session.targets_of(pattern) == targets


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("a", "simplify:a"),
        ("build:a", "simplify:a"),
        ("a:export", "export:a"),
        ("export:a", "export:a"),
        ("a:ort", "engine:a:ort"),
        ("a:engine:ort", "engine:a:ort"),
        ("*:a:ort", "engine:a:ort"),
    ],
)
def test_graphs_are_named_like_targets(session: BuildSession, name: str, target: str) -> None:
    assert graph_action(session, name).target == target


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a:engine", "'a:engine' is not the name of one graph; graphs of a: export, simplify, eng"),
        ("a:simplfy", "'a:simplfy' is not the name of one graph; graphs of a: export, simplify"),
        ("c:simplify", "there is no model 'c'; models: a, b, export"),
        ("a:verify:ort", "'a:verify:ort' is not the name of one graph; graphs of a: export, simp"),
    ],
)
def test_other_names_are_no_graphs(session: BuildSession, name: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        graph_action(session, name)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("name", ["a", "build:a", "a:export", "export:a", "verify:a:ort", "a:ort"])
def test_a_model_is_named_by_any_of_its_targets(session: BuildSession, name: str) -> None:
    assert session.one_model("resolve", [name]) == "a"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "resolve takes the name of one model; models: a, b, export"),
        (["a", "b"], "resolve takes the name of one model"),
        (["simplify"], "resolve takes the name of one model"),
        (["expor"], "there is no model 'expor'; nearest: export"),
    ],
)
def test_no_model_or_several_are_an_error(
    session: BuildSession, names: list[str], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        session.one_model("resolve", names)
    assert problem in str(caught.value)
