"""The program buildsys: its commands, names and paths."""

import subprocess
from pathlib import Path

import pytest
from cli_doubles import Doit, make_session

from buildsys.cli import command
from buildsys.cli.command import enter_project, find_project, shown_path, typed_path
from buildsys.cli.commands import COMMANDS, HIDDEN
from buildsys.cli.main import parse, parser_of, run
from buildsys.cli.session import BuildSession

ROOT = Path(__file__).parents[3]
DODO = "from buildsys.cli.tasks import load\n"


@pytest.fixture(autouse=True)
def _no_folder_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_started_in", [])


def test_every_command_is_in_the_help_and_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert len([name for name in COMMANDS if f"\n  {name} " in printed]) <= 20
    assert run(["help", "--all"]) == 0
    everything = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in everything
        assert (f"\n  {name} " in printed) is (name not in HIDDEN)
        assert run(["help", name]) == run([name, "--help"]) == 0
        first, second = capsys.readouterr().out.split(f"usage: buildsys {name}")[1:]
        assert first == second
        assert "\noptions:\n" in first


def test_mistakes_are_one_sentence_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, sentence in (
        (["explain", "--jsno"], "explain has no option --jsno; nearest: --json; run `buildsys"),
        (["history", "net", "-n", "0"], "-n: expects a positive integer, found '0'; write a "),
        (["schema", "x"], "schema takes no arguments, found 'x'; type it without a name"),
        (["inspect", "net", "--node"], "--node: expected one argument; run `buildsys help insp"),
        (["best", "net", "--within", "nan"], "--within: expects a relative error such as 1e-3"),
        (["best", "net", "--within=-1"], "--within: expects a relative error such as 1e-3, "),
    ):
        assert run(words) == 3
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith(f"ERROR: {sentence}")
        assert printed.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_completion_file_has_the_options_and_targets(
    doit: Doit, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    pytest.importorskip("shtab")
    session, _ = make_session(doit.root, "net")
    monkeypatch.setattr(BuildSession, "of_history", lambda _: session)
    code, printed = doit.run_buildsys("completion", shell)
    assert code == 0
    assert all(word in printed for word in ("explain", "since", "engine:net:ort"))
    if shell == "bash":
        assert subprocess.run(["bash", "-n"], input=printed, text=True).returncode == 0


def test_options_may_stand_anywhere() -> None:
    _, parser = parser_of("build")
    options = parse(parser, ["a", "--json", "b", "--tag", "x", "-n", "3", "--tag", "y", "c"])
    assert (options.names, options.json, options.jobs) == (["a", "b", "c"], True, 3)
    assert options.tag == ["x", "y"]
    assert parse(parser, []).tag == []


def test_build_takes_tags_and_suggests_names(doit: Doit) -> None:
    doit.models, doit.tags = ("a", "b"), {"b": ["nightly"]}
    assert doit("build", "--tag", "nightly")[0] == 0
    assert {name.split(":")[1] for name in doit.session.finished} == {"b"}
    assert doit("build", "a:ort")[0] == 0
    assert "verify:a:ort" not in doit.session.finished
    assert doit("build", "b", "--no-bench")[0] == 0
    stages = {name.split(":")[0] for name in doit.session.finished}
    assert stages == {"export", "reference", "simplify", "validate", "engine", "verify"}
    code, out = doit("build", "aa")
    assert code == 3
    assert "there is no target 'aa'; nearest: " in out
    assert doit("build", "a", "--input", "x.npy") == (
        3, "ERROR: build takes no --input; `buildsys run` runs an engine\n"
    )  # fmt: skip


def test_a_project_is_found_from_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = tmp_path / "docs/pages"
    deep.mkdir(parents=True)
    (tmp_path / "dodo.py").write_text(DODO)
    (tmp_path / "docs/dodo.py").write_text("def task_docs(): ...")  # of another use of doit
    assert find_project(deep) == tmp_path
    monkeypatch.chdir(deep)
    enter_project()
    assert Path.cwd() == tmp_path
    assert capsys.readouterr().err == f"in {tmp_path}\n"
    assert typed_path("out.xml") == Path("docs/pages/out.xml")
    assert typed_path("../../x/out.xml") == Path("x/out.xml")
    assert typed_path("/srv/out.xml") == Path("/srv/out.xml")
    log = tmp_path / "build/net/verify/ort.log"
    log.parent.mkdir(parents=True)
    log.touch()
    assert (
        shown_path(log)
        == shown_path("build/net/verify/ort.log")
        == f"../../{log.relative_to(tmp_path)}"
    )
    assert shown_path("/srv/x") == "/srv/x"


def test_a_broken_configuration_of_doit_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dodo.py").write_text(DODO)
    monkeypatch.chdir(tmp_path)
    for file, text in (("doit.cfg", "loader = x"), ("pyproject.toml", "[tool")):
        (tmp_path / file).write_text(text)
        (tmp_path / "configs/models").mkdir(parents=True, exist_ok=True)
        assert run(["build"]) == 3
        err = capsys.readouterr().err
        assert err.startswith("ERROR: cannot read pyproject.toml or doit.cfg: ")
        assert err.endswith("; correct it, doit reads both\n")
        assert err.count("\n") == 1
        (tmp_path / file).unlink()


def test_outside_of_a_project_only_some_commands_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["build", "net"], ["list"], ["build"]):
        assert run(arguments) == 3
        printed = capsys.readouterr()
        assert printed.err == (
            f"ERROR: {tmp_path} is not in a project (a folder with dodo.py or buildsys.toml of"
            " buildsys, or [tool.buildsys] in pyproject.toml); change to one, or make this"
            " folder one with `buildsys init`\n"
        )
        assert printed.out == ""
    for arguments in (["--version"], ["--help"], [], ["help"], ["help", "build"], ["help", "init"]):
        assert run(arguments) == 0
        assert "buildsys" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
