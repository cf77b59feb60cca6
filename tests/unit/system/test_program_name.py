"""Commands in messages, under both programs."""

from __future__ import annotations

import pytest

from buildsys.cli.main import commands_of
from buildsys.system.printable import printable_line
from buildsys.system.program_name import command_line, started_as, with_program

MESSAGES = {
    "`doit list --all` lists all targets": "`buildsys list --all` lists all targets",
    "`doit` builds every model": "`buildsys` builds every model",
    "`doit build:m` or `doit simplify:m`": "`buildsys build m` or `buildsys simplify:m`",
    "`doit -a engine:m:ort` builds it": "`buildsys -a engine:m:ort` builds it",
    "`doit infer m`, `doit run -n 2`": "`buildsys run m`, `buildsys build -n 2`",
    "`doit build:*`": "`buildsys build *`",
    "`doit-py` and `doitx`, doit 0.37": "`doit-py` and `doitx`, doit 0.37",
}


@pytest.mark.parametrize(("message", "expected"), MESSAGES.items())
def test_messages_suggest_the_program_that_was_started(message: str, expected: str) -> None:
    assert printable_line(message) == message
    with started_as("buildsys"):
        assert printable_line(message) == with_program(message) == expected
        with started_as("doit"):
            assert with_program(message) == message
    assert with_program(message) == message


def test_a_command_without_backticks() -> None:
    with started_as("buildsys"):
        assert (
            command_line("doit cache gc --max-size 10GiB") == "buildsys cache gc --max-size 10GiB"
        )
        assert command_line("pip install doit") == "pip install doit"
    assert command_line("doit debug export:m") == "doit debug export:m"


def test_commands_that_keep_their_name_are_commands_of_both_programs() -> None:
    renamed = {"infer", "run"}
    assert commands_of("doit").keys() - renamed <= commands_of("buildsys").keys()
