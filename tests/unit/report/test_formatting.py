from collections.abc import Callable
from typing import Any

import pytest

from buildsys.report import formatting as q

NAN, INF = float("nan"), float("inf")
TEXTS: dict[Callable[..., str], dict[Any, str]] = {
    # never rounded down
    q.error: {None: "—", 0: "0", 5.12e-7: "5.2e-07", 5.1e-7: "5.1e-07", 9.99e-7: "1.0e-06",
              NAN: "not finite", INF: "not finite"},
    # only 1 itself reads as 1
    q.cosine: {1.0: "1", 1 - 1e-15: "1", 0.99999999: "0.9999999", 0.53: "0.5300000",
               -0.25: "-0.2500000", NAN: "nan"},
    q.share: {1.0: "100 %", 0.99996: "99.9 %", 0.0: "0.0 %", None: "—", NAN: "nan"},
    q.size: {0: "0 B", 999: "999 B", 1000: "1.00 kB", 102_146_000: "102 MB", 2.5e9: "2.50 GB"},
    q.duration: {0.0352: "35 ms", 1.0: "1.00 s", 59.94: "59.9 s", 185: "3 min 5 s",
                 86280: "23 h 58 min", 40 * 86_400: "40 days", None: "—"},
    q.significant: {0.012345: "0.0123", 19.34: "19.3", 1234.5: "1,234", 0.9996: "1.00", 0: "0",
                    NAN: "nan", None: "—"},
    q.speedup: {0.8: f"0.80{q.TIMES} (slower)", 298.84: f"299{q.TIMES}", 2.0: f"2.00{q.TIMES}"},
}  # fmt: skip


@pytest.mark.parametrize("write", TEXTS, ids=lambda write: write.__name__)
def test_quantities_are_never_rounded_to_look_better(write: Callable[..., str]) -> None:
    assert {value: write(value) for value in TEXTS[write]} == TEXTS[write]


FOLDED = {
    "short": ("short", ""),
    "a\n b": ("a b", ""),
    "first clause; second clause": ("first clause; …", "second clause"),
    "not a clause end: so words are cut": ("not a clause end: …", "so words are cut"),
    "a: the words of a sentence are cut": ("a: the words of a …", "sentence are cut"),
    "run it by `buildsys build a` now": ("run it by …", "`buildsys build a` now"),
    "x" * 30: ("x" * 18 + " …", "x" * 12),
}


def test_long_reasons_are_folded_at_the_end_of_a_clause() -> None:
    assert {text: q.fold(text, 20) for text in FOLDED} == FOLDED


def test_a_half_interval_has_the_decimals_of_its_median_and_is_rounded_up() -> None:
    for p50_ms, half, text in ((5.0, 0.041, "5.00 ±0.05"), (123.4, 0.2, "123 ±1")):
        ends = [p50_ms - half, p50_ms + half / 2]
        assert q.with_interval({"p50_ms": p50_ms, "p50_interval_ms": ends}) == text
    assert q.with_interval({"p50_ms": 2.0, "p50_interval_ms": None}) == "2.00"


def test_plain_values_are_no_python() -> None:
    value = {"hint": None, "pinned": False, "on": True, "config": {}, "empty": [], "list": [1, 2.5]}
    text = "hint none, pinned off, on on, config none, empty none, list 1, 2.5"
    assert q.plain(value) == text
