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


def test_plain_values_are_no_python() -> None:
    value = {"hint": None, "pinned": False, "on": True, "config": {}, "empty": [], "list": [1, 2.5]}
    text = "hint none, pinned off, on on, config none, empty none, list 1, 2.5"
    assert q.plain(value) == text
