"""Durations and percentages as the nearest float of what was written."""

from __future__ import annotations

import pytest

from buildsys.manifest.units import parse_duration, parse_percentage


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("26ms", "0.026"), ("9us", "9e-06"), ("1.1min", "66.0"), ("2d", "172800.0")],
)
def test_a_duration_has_no_rounding_error(text: str, seconds: str) -> None:
    assert repr(parse_duration(text)) == seconds


def test_a_percentage_has_no_rounding_error() -> None:
    assert repr(parse_percentage("1.1%")) == "0.011"
