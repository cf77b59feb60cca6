"""Numerical comparisons of all stages as one kind of table."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from buildsys.manifest.shape_cases import format_case, format_dims
from buildsys.onnx_graphs.result_types import NOT_REQUIRED, AgreementFigures, ComparedCases
from buildsys.report import formatting as q
from buildsys.report.formatting import case_order
from buildsys.report.key_figures import stage_report
from buildsys.report.report_types import Check, ComparisonLine, ErrorMargin, Table, fill
from buildsys.report.result_files import FAILED, PASSED, AnyResult
from buildsys.stages.table import SIMPLIFY

_MOST_COMPARISONS, _MOST_FAILURES = 64, 20  # in tables
_ROUNDING = 1e-9  # cosines of equal values differ by this


class Limit(NamedTuple):
    """A limit of a comparison, and the figure that it limits."""

    title: str
    figure: str
    best: float  # 0: an upper limit, 1: a lower one


LIMITS = {
    "rtol": Limit("relative error", "relative", 0.0),
    "cosine": Limit("cosine", "cosine", 1.0),
    "atol": Limit("absolute error", "max_abs", 0.0),
    "top1": Limit("top-1", "top1", 1.0),
    "spread_error": Limit("spread error", "spread_error", 0.0),
    "correlation": Limit("correlation", "correlation", 1.0),
    "slope": Limit("slope error", "slope_error", 0.0),
    "channel_error": Limit("channel error", "channel_error", 0.0),
    "class_agreement": Limit("class agreement", "class_agreement", 1.0),
}


class Compared(NamedTuple):
    """The comparisons of one target."""

    subject: str
    cases: Sequence[tuple[str, ComparedCases]]  # graph, step, precision or profile
    dims: Mapping[str, Mapping[str, int]] = {}  # per case
    idle: tuple[str, ...] = ()  # optimization profiles without a comparison


def checks_of(results: Iterable[AnyResult]) -> tuple[Check, ...]:
    """List one check per comparing target, in the order of the results."""
    return tuple(
        _check_of(result, compared(result))
        for result in results
        if (compared := stage_report(result.stage, "compared"))
    )


def contradictions(checks: Iterable[Check]) -> Iterator[str]:
    """Yield a sentence for every check contradicted by its own numbers."""
    for check in checks:
        if check.status != PASSED:
            continue
        wrong = next((line for line in check.comparisons if line.passed is False), None)
        if wrong:
            output = f"output {wrong.output} in case {wrong.case}"
            yield f"{check.target} has passed, although {output} is not within the limits"
        elif not check.comparisons and not check.target.startswith(f"{SIMPLIFY}:"):
            yield f"{check.target} has passed without comparing anything"
        for profile in check.idle:
            yield f"{check.target} has passed without comparing anything in {profile}"


def limits_text(check: Check) -> str:
    """Describe the limits of a check, "" without any."""
    return ", ".join(
        f"{LIMITS[name].title} at {'least' if LIMITS[name].best else 'most'} {value:g}"
        for name, value in check.limits.items()
        if name in LIMITS
    )


def error_margin(check: Check) -> ErrorMargin | None:
    """Find the error of a check closest to its limit."""
    places: list[tuple[str, dict[str, Any]]] = [
        (f"case {line.case}, output {line.output}", vars(line)) for line in check.comparisons
    ]
    for output, agreement in check.agreement.items():
        slope = agreement.get("slope")
        error = None if slope is None else abs(slope - 1)
        places.append((f"output {output}", {**agreement, "slope_error": error}))
    margins = [
        ErrorMargin(LIMITS[name].title, value, limit, _used(value, limit, LIMITS[name].best), place)
        for place, figures in places
        for name, limit in check.limits.items()
        if name in LIMITS and (value := figures.get(LIMITS[name].figure)) is not None
    ]
    return max(margins, key=lambda margin: margin.used, default=None)


def margin_text(check: Check | None, *, with_place: bool = False) -> str:
    """Describe the error of a check closest to its limit, "" without any."""
    margin = error_margin(check) if check else None
    if margin is None:
        return ""
    text = f"{margin.measure} {q.cosine(margin.value)}, limit {margin.limit:g}"
    if margin.measure.endswith("error"):
        measure = f"{margin.measure} " if with_place else ""
        text = f"{measure}{q.error(margin.value)} of {margin.limit:g}"
    return f"{text} ({margin.place})" if with_place else text


def comparison_table(check: Check) -> Table:
    """List the worst comparisons of a check."""

    def badness(line: ComparisonLine) -> tuple[bool, bool, float]:
        relative = line.relative or 0.0
        return line.passed is False, relative != relative, relative

    def cells(line: ComparisonLine) -> tuple[str, ...]:
        dims = f" ({line.dims})" if line.dims and "=" not in line.case else ""
        place = line.subject, f"{line.case}{dims}", line.output
        if line.uninformative:  # its error of 0 means nothing
            return (*place, *[q.NOTHING] * 4, "not informative")
        errors = q.error(line.max_abs), q.error(line.relative), q.cosine(line.cosine)
        within = q.within_limit(line.passed)
        within = "not required" if line.note.endswith(NOT_REQUIRED) else within
        return (*place, *errors, q.share(line.top1), within)

    lines = check.comparisons
    worst = sorted(lines, key=badness, reverse=True)[:_MOST_COMPARISONS]
    remarks: dict[str, list[str]] = {}  # remark -> cases
    for line in lines:
        for remark in (
            f"compared by policy {line.policy}" if line.policy else "",
            line.note,
            f"{line.uninformative}, so equality proves nothing" if line.uninformative else "",
        ):
            if remark:
                text = f"{line.subject}, {line.output}: {remark}"
                remarks.setdefault(text, []).append(line.case)
    notes = [f"{text} (case {', '.join(cases)})" for text, cases in remarks.items()]
    notes += [_agreement(output, figures) for output, figures in check.agreement.items()]
    if len(worst) < len(lines):
        text = f"The {len(worst)} worst of {len(lines)} comparisons; report.json has all of them."
        notes.insert(0, text)
    columns = (
        "graph or engine", "case", "output", "max abs error>", "relative error>", "cosine>",
        "top-1>", "within limits",
    )  # fmt: skip
    rows = tuple(cells(line) for line in lines if line in worst)
    return Table("", columns, rows, tuple(notes))


_AGREEMENT: Sequence[tuple[str, str, Callable[[float], str]]] = (
    ("spread_error", "error {} of the spread", q.significant),
    ("channel_error", "{} in the worst channel", q.significant),
    ("correlation", "correlation {}", q.cosine),
    ("slope", "slope {}", "{:.3f}".format),
    ("class_agreement", "class agreement {}", q.share),
    ("top1", "top-1 {}", q.share),
    ("top5", "top-5 {}", q.share),
)


def _agreement(output: str, figures: AgreementFigures) -> str:
    if "uninformative" in figures:
        return f"{output}: {figures['uninformative']}."
    numbers: Mapping[str, Any] = figures
    parts = [
        text.format(write(numbers[name])) for name, text, write in _AGREEMENT if name in numbers
    ]
    return f"{output}, over {figures['samples']} samples: {', '.join(parts)}."


def failure_table(check: Check) -> Table:
    """List the worst element of each failed output."""
    columns = ("graph or engine", "case", "output", "index", "actual>", "expected>", "problem")
    rows = []
    for failure in check.failures[:_MOST_FAILURES]:
        profile = f", profile {failure['profile']}" if "profile" in failure else ""
        case = format_case(failure.get("case", ""), failure.get("dims", {}))
        values = failure.get("index"), failure.get("actual"), failure.get("expected")
        texts = (
            "" if v is None else q.plain(v) if isinstance(v, float) else str(v) for v in values
        )
        graph = (failure.get("graph") or check.target.rpartition(":")[2]) + profile
        rows.append((graph, case, failure.get("output", ""), *texts, failure.get("problem", "")))
    more = len(check.failures) - len(rows)
    notes = (f"and {more} more failures in report.json",) if more else ()
    return Table("", columns, tuple(rows), notes)


def _used(value: float, limit: float, best: float) -> float:
    """Compute the share of the way from the best value to the limit."""
    room, distance = abs(limit - best), abs(value - best)
    if best and distance < _ROUNDING:
        distance = 0.0
    if math.isfinite(value) and room:
        return distance / room
    return math.inf if distance else 0.0


def _check_of(result: AnyResult, compared: Compared) -> Check:
    content = result.content
    tolerance = content.get("tolerance", {})
    lines = [line for cases in compared.cases for line in _lines(*cases, compared.dims)]
    return Check(
        target=result.target,
        subject=compared.subject,
        status=result.status,
        limits={name: tolerance[name] for name in LIMITS if tolerance.get(name) is not None},
        comparisons=tuple(lines) if result.status in (PASSED, FAILED) else (),
        agreement=content.get("agreement", {}),
        failures=tuple(content.get("failures", [])),
        idle=compared.idle,
    )


def _lines(
    subject: str, cases: ComparedCases, dims: Mapping[str, Mapping[str, int]]
) -> Iterator[ComparisonLine]:
    for case in sorted(cases, key=case_order):
        for output, comparison in cases[case].items():
            own = {"subject": subject, "case": case, "output": output}
            own["dims"] = format_dims(dims.get(case, {}))
            if comparison.get("passed") is False and "relative" in comparison:
                # JSON has null for NaN and infinity
                numbers = {name: comparison.get(name) for name in ("max_abs", "relative")}
                nan = {name: math.nan for name, value in numbers.items() if value is None}
                comparison = {**comparison, **nan}  # type: ignore[typeddict-item]
            yield fill(ComparisonLine, comparison, **own)
