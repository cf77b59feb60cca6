"""Doubts about passed checks: what they could not see, for the verdict."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from buildsys.onnx_graphs.result_types import Doubt
from buildsys.report.formatting import first_names, plural
from buildsys.report.report_types import Check
from buildsys.report.result_files import PASSED, AnyResult

_MOST_PLACES = 3
_FIXED = {"branch": ("branch", "branches"), "value": ("value", "values")}


def doubts_of(
    results: Iterable[AnyResult], accepted: Collection[str]
) -> Iterator[tuple[str, Doubt]]:
    """Yield the target and the doubt, of passed results and places that are not accepted."""
    for result in results:
        for doubt in result.content.get("doubts", []) if result.status == PASSED else ():
            if doubt["place"] not in accepted:
                yield result.target, doubt


def doubts_text(doubts: Sequence[Doubt], checks: Iterable[Check]) -> str:
    """Summarize as in ``1 branch fixed at net.py:12, 9 of 10 cases compared``, "" without any."""
    places: dict[str, dict[str, None]] = {}
    for doubt in doubts:
        places.setdefault(doubt["kind"], {})[doubt["place"]] = None
    parts = [
        f"{plural(len(places[kind]), *nouns)} fixed at {first_names([*places[kind]], _MOST_PLACES)}"
        for kind, nouns in _FIXED.items()
        if kind in places
    ]
    if "state" in places:
        names = first_names([*filter(None, places["state"])], _MOST_PLACES)
        parts.append(f"state lost{' at' if names else ''} {names}".rstrip())
    if left_out := places.get("uncompared"):
        cases = {line.case for check in checks for line in check.comparisons} | left_out.keys()
        parts.append(f"{len(cases) - len(left_out)} of {len(cases)} cases compared")
    if outputs := places.get("output"):
        parts.append(f"no informative case for {first_names([*outputs], _MOST_PLACES)}")
    return ", ".join(parts)
