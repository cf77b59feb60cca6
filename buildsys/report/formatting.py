"""Quantities for people, with units, never rounded to look better."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unicodedata import east_asian_width

from buildsys.onnx_graphs.result_types import ComparedCases, format_error

NOTHING = "—"
TIMES = "\N{MULTIPLICATION SIGN}"
LONGEST_REASON = 120  # characters of a line; the rest is folded
_CASES = ("min", "opt", "max", "odd")
_ROUNDING = 1e-6  # of a last digit
_DOUBLE_NOISE = 1e-12  # more than the rounding error of a vector's cosine with itself
_PREFIXES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_FROM = 10**4
_SIZES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def significant(value: float | None, digits: int = 3) -> str:
    """Write a number with significant digits and without exponent: 0.0123, 1.23, 1230."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # the rounded value's exponent
    decimals = digits - 1 - exponent
    return f"{value:,.{0 if decimals < 0 else decimals if decimals < 9 else 9}f}"


def latency(value: float | None, *, noisy: bool) -> str:
    """Write a latency or a rate with three digits, or two if it is noisy."""
    return significant(value, 2 if noisy else 3)


def number(value: float | None) -> str:
    """Write an integer with all digits, another number with significant ones."""
    if value is not None and math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return significant(value)


def interval(ends: Sequence[float] | None, *, noisy: bool = False) -> str:
    """Write the ends of an interval: 2.08 to 2.13."""
    if not ends or len(ends) != 2:
        return NOTHING
    return " to ".join(latency(end, noisy=noisy) for end in ends)


def with_interval(latencies: Mapping[str, Any]) -> str:
    """Write a median in ms with its interval, rounded up to as many decimals: ``1.23 ±0.04``."""
    p50, ends = latencies["p50_ms"], latencies.get("p50_interval_ms")
    text = significant(p50)
    if not ends or len(ends) != 2 or p50 is None:
        return text
    decimals = len(text.partition(".")[2])
    half = math.ceil(max(ends[1] - p50, p50 - ends[0]) * 10**decimals - _ROUNDING)
    return f"{text} ±{half / 10**decimals:.{decimals}f}"


def size(size_bytes: float | None) -> str:
    """Write bytes in decimal units: 102 MB."""
    if size_bytes is None:
        return NOTHING
    for factor, unit in _SIZES:
        if size_bytes >= factor:
            return f"{significant(size_bytes / factor)} {unit}"
    return f"{size_bytes:.0f} B"


def duration(seconds: float | None) -> str:
    """Write a duration: 35 ms, 4.20 s, 3 min 5 s, 2 h 10 min, 3 days."""
    if seconds is None:
        return NOTHING
    if seconds >= 2 * 86400:
        return f"{int(seconds) // 86400} days"
    if seconds >= 3600:
        return f"{int(seconds) // 3600} h {int(seconds) // 60 % 60} min"
    if seconds >= 60:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{significant(seconds)} s" if seconds >= 1 else f"{seconds * 1e3:.0f} ms"


def count(value: int | None) -> str:
    """Write a count with thousands separators."""
    return NOTHING if value is None else f"{value:,}"


def plural(number: int, singular: str, plural: str = "") -> str:
    """Write a number with its noun: 1 step, 2 steps."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def first_names(names: Sequence[str], most: int) -> str:
    """List the first names and the number of others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def fold(text: str, most: int = LONGEST_REASON) -> tuple[str, str]:
    """Split a reason into one line of at most ``most`` characters, and the rest.

    The cut is after a semicolon, a clause or a word, outside of code in backticks if possible.
    """
    line = " ".join(text.split())
    if len(line) <= most:
        return line, ""
    room = line[: most - 2]  # " …" marks the cut
    ends = [match.end() for match in re.finditer(" ", room)]
    ends = [end for end in ends if room[:end].count("`") % 2 == 0]
    sentences = [end for end in ends if end > most // 3 and room[end - 2] == ";"]
    late = [end for end in ends if end > most * 2 // 3]
    clauses = [end for end in late if room[end - 2] in ":."]
    end = max(sentences or clauses or late or ends, default=len(room))
    return f"{line[:end].rstrip()} …", line[end:].lstrip()


def shares(values: Mapping[str, float], most: int | None = None) -> str:
    """List shares, the largest first: ``90.0 % float16, 10.0 % float32``."""
    ordered = sorted(((share, name) for name, share in values.items()), reverse=True)
    texts = [f"{100 * share:.1f} % {name}" for share, name in ordered]
    return first_names(texts, len(texts) if most is None else most)


def large(value: float | None) -> str:
    """Write a count with a prefix from 10,000 on: 4.09 G."""
    if value is None:
        return NOTHING
    for factor, prefix in _PREFIXES if value >= _FROM else ():
        if value >= factor:
            return f"{significant(value / factor)} {prefix}"
    return f"{int(value):,}"


def nodes(value: int | None) -> str:
    """Write a count of nodes with its noun."""
    return f"{count(value)} {'node' if value == 1 else 'nodes'}"


def error(value: float | None) -> str:
    """Write an error with two digits, rounded up: 5.1e-07."""
    return NOTHING if value is None else format_error(value)


def cosine(value: float | None) -> str:
    """Write a cosine similarity, truncated: only 1 itself reads as 1."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(value)
    return "1" if value > 1 - _DOUBLE_NOISE else f"{math.floor(value * 1e7) / 1e7:.7f}"


def percent(value: float, digits: int = 1) -> str:
    """Write a ratio in percent: 5.0 %."""
    return f"{100 * value:.{digits}f} %"


def beyond(value: float, limit: float, write: Callable[[float], str]) -> str:
    """Write a value beyond its limit, with the distance if both read the same."""
    text = write(value)
    if text != write(limit) or not limit:
        return text
    return f"{text} ({100 * abs(value / limit - 1):.2g} % beyond)"


def metric(value: float, *, is_share: bool) -> str:
    """Write a metric on data, a share in percent."""
    return percent(value) if is_share else significant(value)


def loss(figures: Mapping[str, Any]) -> str:
    """Write the loss of a metric with its interval."""
    return f"{percent(figures['loss'])} ({percent(figures['low'])} to {percent(figures['high'])})"


def change(value: float) -> str:
    """Write a relative change: +5.0 %."""
    return f"{100 * value:+.1f} %"


def share(value: float | None) -> str:
    """Write a share in percent, truncated: only 1 reads as 100 %."""
    if value is None:
        return NOTHING
    if not math.isfinite(value):
        return str(value)
    return "100 %" if value >= 1 else f"{math.floor(value * 1e3) / 10:.1f} %"


def within_limit(passed: bool | None) -> str:
    """Say whether a figure is within its limit; None: it has none."""
    return NOTHING if passed is None else "yes" if passed else "NO"


def speedup(value: float | None) -> str:
    """Write a speed-up factor, marked if it is below 1."""
    if value is None:
        return NOTHING
    digits = f"{value:.2f}" if value < 10 else significant(value)
    return f"{digits}{TIMES}" + (" (slower)" if value < 0.995 else "")


def plain(value: object, between: str = ", ") -> str:
    """Write a JSON value as text; ``between`` separates entries of lists."""
    if isinstance(value, Mapping):
        return (
            ", ".join(f"{name} {plain(entry, between)}" for name, entry in value.items()) or "none"
        )
    if isinstance(value, (list, tuple)):
        return between.join(plain(entry, between) for entry in value) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def align(
    rows: Sequence[Sequence[str]], at_right: Sequence[bool], least: int = 0
) -> list[list[str]]:
    """Pad the cells of a table."""
    widths = [max(least, *map(display_width, column)) for column in zip(*rows, strict=True)]

    def pad(cell: str, width: int, right: bool) -> str:
        fill = " " * (width - display_width(cell))
        return fill + cell if right else cell + fill

    return [list(map(pad, row, widths, at_right)) for row in rows]


def display_width(text: str) -> int:
    """Measure the width of text; count wide characters twice."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in text)


def case_order(case: str) -> tuple[int, str]:
    """Sort min, opt, max and odd first."""
    return (_CASES.index(case) if case in _CASES else len(_CASES), case)


def node_change(result: Mapping[str, Any]) -> str:
    """Format the nodes of a graph before and after a change. Raises: KeyError: one is unknown."""
    return f"{count(result['before']['nodes'])} → {nodes(result['after']['nodes'])}"


def worst_comparison(graphs: Mapping[str, ComparedCases]) -> tuple[float, str] | None:
    """Find the largest relative error of compared graphs with its place. NaN is the worst."""
    errors = [
        (math.nan if error is None else error, " ".join(filter(None, (graph, case, output))))
        for graph, cases in graphs.items()
        for case, outputs in cases.items()
        for output, comparison in outputs.items()
        if (error := comparison.get("relative")) is not None or comparison.get("passed") is False
    ]
    return max(errors, key=lambda error: (math.isnan(error[0]), error[0]), default=None)


def error_text(worst: tuple[float, str] | None) -> str:
    """Describe the largest relative error, "" without any."""
    return f"worst relative error {error(worst[0])} ({worst[1]})" if worst else ""


def recorded_error(worst: tuple[float, str] | None) -> dict[str, Any]:
    """Describe the largest relative error for the history, None if not finite."""
    if worst is None:
        return {}
    return {"relative": worst[0] if math.isfinite(worst[0]) else None, "relative_at": worst[1]}


def _milliseconds(seconds: float) -> str:
    return f"{significant(seconds * 1e3)} ms"


GATED_FIGURES: Mapping[str, Callable[[float], str]] = {
    "throughput": lambda value: f"{significant(value)}/s",
    "size": size,
    "memory": size,
    "error": error,
    "accuracy": lambda value: significant(value, 4),
    "build_time": duration,
    **dict.fromkeys(("latency", "load_time", "first_call"), _milliseconds),
}
