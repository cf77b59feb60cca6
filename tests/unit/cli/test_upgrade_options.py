"""`buildsys upgrade`: refused arguments, and what it says is affected."""

from argparse import ArgumentParser

import pytest

from buildsys.cli.commands import upgrade
from buildsys.errors import UsageError


def test_arguments_without_meaning_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    upgrade.add_arguments(parser)
    for option in ("--tolerance=-5%", "--tolerance=5", "--tolerance=nan", "--duration=-1"):
        with pytest.raises(SystemExit):
            parser.parse_args([option])
        assert f"{option.partition('=')[0]}: expected a " in capsys.readouterr().err
    for word in ("onnxruntime>=1.31", "onnxruntime~=1.31", "=python"):
        with pytest.raises(UsageError, match="upgrade needs packages such as"):
            upgrade.run(parser.parse_args([word]))


def test_targets_with_reasons_of_their_own_are_apart_from_those_downstream() -> None:
    causes = {"export": "torch 1 → 2", "simplify": "upstream: export", "engine": "upstream: export"}
    stale = {target: {"reasons": [cause]} for target, cause in causes.items()}
    assert list(upgrade._affected_lines(stale, 4)) == [
        "affected: 3 of 4 targets",
        "  export: torch 1 → 2",
        "  simplify, engine: upstream targets",
    ]
