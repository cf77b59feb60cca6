"""What a failure says about changes of its manifest."""

import pytest

from buildsys.cli.trials import Ends, describe_ends


@pytest.mark.parametrize(
    ("ended", "text"),
    [
        ({}, ""),
        ({"a: 1": False, "b: 2": True}, "b: 2 (tried: it leads to a verified engine)"),
        ({"a: 1": False}, "tried a: 1: it does not lead to a verified engine"),
        (
            {"a: 1": False, "b: 2": False, "c: 3": ""},
            "tried a: 1, b: 2: none leads to a verified engine; not tried: c: 3",
        ),
        (
            {"a: 1": "it died", "b: 2": "no time", "c: 3": "no time"},
            "not tried: a: 1 (it died); not tried: b: 2, c: 3 (no time)",
        ),
    ],
)
def test_trials_are_described(ended: Ends, text: str) -> None:
    assert describe_ends(ended) == text
