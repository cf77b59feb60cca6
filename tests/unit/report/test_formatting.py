from __future__ import annotations

import pytest

from buildsys.report import formatting as q

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0"),
        (5.12e-7, "5.2e-07"),
        (5.1e-7, "5.1e-07"),
        (9.99e-7, "1.0e-06"),
        (NAN, "not finite"),
        (INF, "not finite"),
    ],
)
def test_an_error_is_never_rounded_down(value: float | None, text: str) -> None:
    assert q.error(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1 - 1e-15, "1"),
        (0.99999999, "0.9999999"),
        (0.53, "0.5300000"),
        (-0.25, "-0.2500000"),
        (NAN, "nan"),
    ],
)
def test_only_a_cosine_of_one_reads_as_one(value: float, text: str) -> None:
    assert q.cosine(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "100 %"), (0.99996, "99.9 %"), (0.0, "0.0 %"), (None, "—"), (NAN, "nan")],
)
def test_only_all_of_them_read_as_100_percent(value: float | None, text: str) -> None:
    assert q.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (102_146_000, "102 MB"), (2.5e9, "2.50 GB")],
)
def test_sizes_have_decimal_units(value: float, text: str) -> None:
    assert q.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0352, "35 ms"),
        (1.0, "1.00 s"),
        (59.94, "59.9 s"),
        (185, "3 min 5 s"),
        (86280, "23 h 58 min"),
        (40 * 86_400, "40 days"),
        (None, "—"),
    ],
)
def test_durations_have_a_suitable_unit(value: float | None, text: str) -> None:
    assert q.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.012345, "0.0123"),
        (19.34, "19.3"),
        (1234.5, "1,234"),
        (0.9996, "1.00"),
        (0, "0"),
        (NAN, "nan"),
        (None, "—"),
    ],
)
def test_significant_digits(value: float | None, text: str) -> None:
    assert q.significant(value) == text


def test_plain_values_are_no_python() -> None:
    value = {"hint": None, "pinned": False, "config": {}, "profiles": [], "sizes": [1, 2.5]}
    text = "hint none, pinned off, config none, profiles none, sizes 1, 2.5"
    assert q.plain(value) == text


def test_a_slower_engine_is_called_slower() -> None:
    assert q.speedup(0.8) == "0.80\N{MULTIPLICATION SIGN} (slower)"
    assert q.speedup(298.84) == "299\N{MULTIPLICATION SIGN}"
    assert q.speedup(2.0) == "2.00\N{MULTIPLICATION SIGN}"


def test_switches_are_on_or_off() -> None:
    assert q.plain({"spinning": True, "threads": 2, "graph": [False]}) == (
        "spinning on, threads 2, graph off"
    )
