from __future__ import annotations

import math

import pytest

from buildsys.cli.console.plot import plot_lines


def test_values_and_intervals_are_drawn_from_left_to_right() -> None:
    lines = plot_lines([(1.0, None), (2.0, (1.5, 2.5)), (4.0, None)])
    assert lines == [
        "4.0 ┤         ●",
        "3.5 ┤",
        "3.0 ┤",
        "2.5 ┤     │",
        "2.0 ┤     ●",
        "1.5 ┤     │",
        "1.0 ┤ ●",
    ]


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        ([0.03683, 0.0391, 0.0362], ["0.0390", "0.0385", "0.0380", "0.0375", "0.0370", "0.0365",
                                     "0.0360"]),
        ([0.1, 0.3], ["0.30", "0.25", "0.20", "0.15", "0.10"]),
        ([1034.0, 9871.0], ["10,000", "8,000", "6,000", "4,000", "2,000"]),
        ([23.1, 24.9], ["25.0", "24.5", "24.0", "23.5", "23.0"]),
    ],
)  # fmt: skip
def test_levels_are_round(values: list[float], levels: list[str]) -> None:
    lines = plot_lines([(value, None) for value in values])
    assert [line.split()[0] for line in lines] == levels
    assert len({line.index("┤") for line in lines}) == 1


@pytest.mark.parametrize("scale", [1e-6, 0.037, 1.0, 999.5, 4.2e7])
@pytest.mark.parametrize("spread", [0.0, 0.003, 0.021, 0.4, 9.0])
def test_every_value_is_at_the_nearest_level(scale: float, spread: float) -> None:
    values = [scale * (1 + spread * n / 7) for n in range(8)]
    lines = plot_lines([(value, None) for value in values])
    levels = [float(line.split()[0].replace(",", "")) for line in lines]
    step = levels[0] - levels[1]
    assert 3 <= len(lines) <= 8
    assert max(map(len, lines)) <= 78
    for n, value in enumerate(values):
        place = lines[0].index("┤") + 2 + 4 * n
        (level,) = [own for own, line in zip(levels, lines, strict=True) if line[place:][:1] == "●"]
        assert abs(level - value) <= step * 0.501


def test_a_flat_line_stays_flat() -> None:
    lines = plot_lines([(1.0, None), (1.0001, None)], ascii_only=True)
    assert [line.count("*") for line in lines] == [0, 0, 2, 0, 0]
    assert "\n".join(lines).isascii()


def test_the_last_values_are_shown_in_80_columns() -> None:
    lines = plot_lines([(float(n), None) for n in range(1000)])
    assert max(map(len, lines)) <= 78
    assert lines[-1].startswith("  940")


def test_what_is_not_finite_is_left_out() -> None:
    assert plot_lines([(math.nan, None)]) == []
    assert plot_lines([(1.0, (math.nan, 2.0)), (1.0, None)]) == plot_lines([(1.0, None)])
