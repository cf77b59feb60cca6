"""Options of every command that a page of the documentation shows."""

from pathlib import Path

import pytest
from documented_commands import check_command, shown_commands
from doit.cmdparse import CmdParseError
from doit.exceptions import InvalidCommand

from buildsys.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if page.parent.name != "reference"  # generated
)


def test_every_command_and_option_of_a_page_exists() -> None:
    found = 0
    for page in PAGES:
        for line in shown_commands(page):
            try:
                found += check_command(line)
            except (CmdParseError, InvalidCommand, UsageError) as error:
                pytest.fail(f"{page.relative_to(ROOT)}: `{line}`: {error}")
    assert found > 50


@pytest.mark.parametrize(
    "line",
    ["doit plan", "buildsys plan --sinse main", "A=1 buildsys build m --tag", "doit x --quiet"],
)
def test_a_command_with_a_wrong_option_is_found(line: str) -> None:
    with pytest.raises((CmdParseError, InvalidCommand, UsageError)):
        check_command(line)
