from __future__ import annotations

import math

from buildsys.cli.console.plot import plot_lines


def test_values_and_intervals_are_drawn_from_left_to_right() -> None:
    lines = plot_lines([(1.0, None), (2.0, (1.5, 2.5)), (4.0, None)])
    assert lines == [
        "4.000 ┤         ●",
        "3.500 ┤",
        "3.000 ┤",
        "2.500 ┤     │",
        "2.000 ┤     ●",
        "1.500 ┤     │",
        "1.000 ┤ ●",
    ]


def test_a_flat_line_stays_flat() -> None:
    lines = plot_lines([(1.0, None), (1.0001, None)], ascii_only=True)
    assert [line.count("*") for line in lines] == [0, 0, 0, 2, 0, 0, 0]
    assert "\n".join(lines).isascii()


def test_the_last_values_are_shown_in_80_columns() -> None:
    lines = plot_lines([(float(n), None) for n in range(1000)])
    assert max(map(len, lines)) <= 78
    assert lines[-1].startswith("940.0")


def test_what_is_not_finite_is_left_out() -> None:
    assert plot_lines([(math.nan, None)]) == []
    assert plot_lines([(1.0, (math.nan, 2.0)), (1.0, None)]) == plot_lines([(1.0, None)])
