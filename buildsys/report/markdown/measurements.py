"""The tables of the Markdown report that hold measured numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from buildsys.report import formatting as q
from buildsys.report import gpu_timing
from buildsys.report.markdown.elements import code, escape, table
from buildsys.report.results.report import Check, Comparison, EngineLine, Failure, Report, Timing
from buildsys.report.verdict import status_word

Lines = Iterator[str]
_MOST_ROWS = 64
_MOST_FAILURES = 20
_MOST_NAMES = 12
_LIMIT_TEXT = {
    "rtol": "relative error at most {}",
    "cosine": "cosine at least {}",
    "atol": "absolute error at most {}",
    "top1": "top-1 agreement at least {}",
}


def conversions(report: Report) -> Lines:
    """Yield what each conversion did to the graph."""
    if not report.conversions:
        return
    yield from ("", "## Precision", "")
    rows = [
        (
            made.precision,
            status_word(made.status),
            ", ".join(f"{dtype} {q.count(n)}" for dtype, n in made.initializers.items())
            or q.NOTHING,
            q.count(made.casts),
            f"{q.size(made.bytes_before)} → {q.size(made.bytes_after)}",
        )
        for made in report.conversions
    ]
    yield from table(("precision", "status", "initializers", "casts>", "size>"), rows)
    for made in report.conversions:
        if made.kept_fp32:
            names = ", ".join(code(name) for name in made.kept_fp32[:_MOST_NAMES])
            more = (
                f" and {len(made.kept_fp32) - _MOST_NAMES} more"
                if len(made.kept_fp32) > _MOST_NAMES
                else ""
            )
            yield from ("", f"Kept in fp32 in the {made.precision} graph: {names}{more}.")


def checks(report: Report) -> Lines:
    """Yield every comparison of numbers, and first of all the values that failed."""
    yield from ("", "## Numbers", "")
    yield "- Relative error: the largest difference over the largest reference value."
    yield "- Top-1: the share of equal arg-max on the last axis."
    for check in report.checks:
        yield from ("", f"### {check.target}: {escape(check.subject)}", "")
        yield f"Status: {status_word(check.status)}.{_limits(check.limits)}"
        yield from _failures(check.failures)
        yield from _comparisons(check)


def engines(report: Report) -> Lines:
    """Yield the engines; built, verified and timed are told apart."""
    yield from ("", "## Engines", "")
    if not report.engines:
        yield "The manifest asks for no engines."
        return
    columns = (
        "engine",
        "backend",
        "precision",
        "built",
        "size>",
        "build time>",
        "layers>",
        "verified",
        "timed",
    )
    yield from table(columns, [_engine(line) for line in report.engines])
    yield from _devices(report.engines)
    for made in report.engine_provenance:
        yield from ("", f"### Engine {code(made.engine)}", "")
        yield from (f"- {name}: {escape(text)}" for name, text in made.lines.items())


def bench(report: Report) -> Lines:
    """Yield latencies and throughput, each engine above the baselines it was interleaved with."""
    yield from ("", "## Benchmarks", "")
    if not report.bench:
        yield "Nothing was measured."
        return
    columns = (
        "engine", "case", "shape", "contender", "p50 (ms)>", "p90 (ms)>", "p95 (ms)>", "p99 (ms)>", "mean (ms)>",
        "samples>", "throughput (/s)>", "speed-up>",
    )  # fmt: skip
    yield from table(columns, [_timing(line) for line in report.bench])
    yield ""
    yield "- Speed-up: p50 of the baseline over p50 of the engine, measured interleaved in one run."
    yield "- Throughput: batch items per second."
    yield from (f"- {escape(note)}" for note in report.bench_notes)
    yield from gpu_timing.render(report.gpu_timings, report.gpu_states)


def _limits(limits: Mapping[str, float]) -> str:
    given = [
        _LIMIT_TEXT[name].format(f"{limits[name]:g}") for name in _LIMIT_TEXT if name in limits
    ]
    return f" Limits: {', '.join(given)}." if given else ""


def _failures(failures: Sequence[Failure]) -> Lines:
    if not failures:
        return
    rows = [
        (
            escape(f.subject),
            escape(f.case),
            code(f.output),
            code(f.index),
            code(f.actual),
            code(f.expected),
            escape(f.problem),
        )
        for f in failures[:_MOST_FAILURES]
    ]
    yield from (
        "",
        *table(
            ("graph or engine", "case", "output", "index", "actual>", "expected>", "problem"), rows
        ),
    )
    if len(failures) > _MOST_FAILURES:
        yield from ("", f"… and {len(failures) - _MOST_FAILURES} more failures in `report.json`.")


def _comparisons(check: Check) -> Lines:
    if not check.comparisons:
        yield from ("", "Nothing was compared.")
        return
    shown = _chosen(check.comparisons)
    columns = (
        "graph or engine",
        "case",
        "output",
        "max abs error>",
        "relative error>",
        "cosine>",
        "top-1>",
        "within limits",
    )
    yield from ("", *table(columns, [_comparison(line) for line in shown]))
    if len(shown) < len(check.comparisons):
        yield from (
            "",
            f"The {len(shown)} worst of {len(check.comparisons)} comparisons; all are in `report.json`.",
        )


def _chosen(lines: Sequence[Comparison]) -> Sequence[Comparison]:
    """Return all comparisons, or the worst ones where there are too many to read; NaN is the worst."""
    if len(lines) <= _MOST_ROWS:
        return lines
    worst = sorted(lines, key=lambda line: (line.passed is not False, -_badness(line)))[:_MOST_ROWS]
    return [line for line in lines if line in worst]


def _badness(line: Comparison) -> float:
    if line.relative is None:
        return 0.0
    return float("inf") if line.relative != line.relative else line.relative


def _comparison(line: Comparison) -> tuple[str, ...]:
    within = {True: "yes", False: "NO", None: q.NOTHING}[line.passed]
    errors = (
        q.error(line.max_abs),
        q.error(line.relative),
        q.cosine(line.cosine),
        q.share(line.top1),
    )
    case = f"{line.case} ({escape(line.dims)})" if line.dims and "=" not in line.case else line.case
    return escape(line.subject), case, code(line.output), *errors, within


def _engine(line: EngineLine) -> tuple[str, ...]:
    statuses = {key: status_word(value) for key, value in (("v", line.verified), ("t", line.timed))}
    return (
        code(line.name),
        line.backend,
        line.precision,
        "yes" if line.built == "passed" else status_word(line.built),
        q.size(line.size_bytes),
        q.duration(line.build_seconds),
        q.count(line.layers),
        statuses["v"],
        statuses["t"],
    )


def _devices(lines: Sequence[EngineLine]) -> Lines:
    known = [line for line in lines if line.device]
    if known:
        yield ""
    yield from (f"- {code(line.name)}: {escape(line.device)}" for line in known)


def _timing(line: Timing) -> tuple[str, ...]:
    figures = (line.p50_ms, line.p90_ms, line.p95_ms, line.p99_ms, line.mean_ms)
    return (
        code(line.engine),
        line.case,
        line.dims,
        gpu_timing.contender_words(line.contender),
        *(q.significant(figure) for figure in figures),
        q.count(line.samples),
        q.significant(line.throughput_per_s),
        q.speedup(line.speedup),
    )
