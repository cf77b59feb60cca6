"""Names, patterns and options on doit's command line."""

import pytest
from cli_doubles import Doit


@pytest.mark.parametrize(
    ("arguments", "offered"),
    [
        (("build:ne",), "build:net"),
        (("info", "validat:net"), "validate:net"),
        (("forget", "engine:net:otr"), "engine:net:ort"),
        (("ignore", "bnch"), "bench"),
    ],
)
def test_the_nearest_name_is_suggested_for_a_misspelled_one(
    doit: Doit, arguments: tuple[str, ...], offered: str
) -> None:
    code, out = doit(*arguments)
    assert code == 3
    assert out.startswith(f"ERROR: there is no target '{arguments[-1]}'; nearest: {offered}")
    assert out.count("\n") == 1
    assert not doit.session.finished


def test_an_ambiguous_name_runs_nothing(doit: Doit) -> None:
    doit.models = ("a", "export")
    for command in ((), ("list",), ("info",), ("clean",), ("forget",), ("ignore",)):
        code, out = doit(*command, "export")
        problem = "ERROR: 'export' is ambiguous; name one of export:*, build:export\n"
        assert (code, out) == (3, problem)
        assert (doit.session.finished, doit.executor.forgotten) == ({}, [])


def test_patterns_are_accepted_by_every_command(doit: Doit) -> None:
    doit.models = ("a", "b")
    doit("forget", "engine:*:ort")
    assert doit.executor.forgotten == ["engine:a:ort", "engine:b:ort"]
    _, out = doit("list", "-q", "*:ort")
    assert out.split()[0] == "bench:a:ort"
    for command in ((), ("list",), ("forget",), ("clean",)):
        code, out = doit(*command, "x*")
        assert code == 3
        assert out == "ERROR: there is no target 'x*'; `buildsys list --all` lists all targets\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "export:net", "-a", "-s"),
        ("build", "--force", "export:net", "--single"),
        ("build", "-a", "export:net", "-s", "--continue", "-j", "2"),
        ("run", "-s", "-a", "export:net"),
    ],
)
def test_options_may_follow_target_names(doit: Doit, arguments: tuple[str, ...]) -> None:
    doit.build_all()
    code, _ = doit(*arguments)
    assert code == 0
    assert doit.executor.forced == ["export:net"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("export:net", "--wrong"), "doit takes options before names, found --wrong after one"),
        (("net", "-n"), "doit takes options before names, found -n after one"),
        (("explain", "net"), "doit has no command explain; type buildsys explain"),
        (("plan",), "doit has no command plan; type buildsys plan"),
    ],
)
def test_what_doit_would_take_for_a_target_is_one_line(
    doit: Doit, arguments: tuple[str, ...], problem: str
) -> None:
    assert doit.run_doit(*arguments) == (3, f"ERROR: {problem}\n")


def test_the_path_of_an_output_selects_its_target(doit: Doit) -> None:
    doit("build/net/export/model.onnx")
    assert list(doit.session.finished) == ["export:net"]
