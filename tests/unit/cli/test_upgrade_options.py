"""`buildsys upgrade`: refused arguments, and what it says is affected."""

from argparse import ArgumentParser

import pytest

from buildsys.cli.commands import upgrade
from buildsys.errors import UsageError


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--tolerance", "-5%", "a percentage"),
        ("--tolerance", "5", "a percentage"),
        ("--tolerance", "nan", "a percentage"),
        ("--duration", "-1", "a duration"),
    ],
)
def test_a_tolerance_or_duration_without_meaning_is_refused(
    option: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = ArgumentParser()
    upgrade.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([f"{option}={value}"])
    assert f"{option}: expected {expected} such as" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["onnxruntime>=1.31", "onnxruntime~=1.31", "=python"])
def test_a_range_of_versions_is_no_toolchain(word: str) -> None:
    parser = ArgumentParser()
    upgrade.add_arguments(parser)
    with pytest.raises(UsageError, match="upgrade needs packages such as"):
        upgrade.run(parser.parse_args([word]))


def test_targets_with_reasons_of_their_own_are_apart_from_those_downstream() -> None:
    causes = {"export": "torch 1 → 2", "simplify": "upstream: export", "engine": "upstream: simplify"}
    stale = {target: {"reasons": [cause]} for target, cause in causes.items()}
    lines = list(upgrade._affected_lines(stale, 4))
    assert lines[0] == "affected: 3 of 4 targets"
    assert lines[1:] == ["  export: torch 1 → 2", "  simplify, engine: upstream targets"]
