"""The Markdown sections with measured numbers: precision, accuracy, engines, benchmarks."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.markdown.elements import code, escape, section, status_text, table
from buildsys.report.results.report import Check, ComparisonLine, Report

Lines = Iterator[str]
_MOST_ROWS = 64
_MOST_FAILURES = 20
_MOST_NAMES = 12
_FAILURE_COLUMNS = (
    "graph or engine", "case", "output", "index", "actual>", "expected>", "problem",
)  # fmt: skip
_LIMIT_TEXT = {
    "rtol": "relative error at most {}",
    "cosine": "cosine at least {}",
    "atol": "absolute error at most {}",
    "top1": "top-1 agreement at least {}",
}


def conversions(report: Report) -> Lines:
    """Yield the changes by each conversion."""
    if not report.conversions:
        return
    yield from section("## Precision")
    rows = []
    for made in report.conversions:
        counts = ", ".join(
            f"{escape(dtype)} {q.count(n)}" for dtype, n in made.initializers.items()
        )
        sizes = f"{q.size(made.bytes_before)} → {q.size(made.bytes_after)}"
        status = status_text(made.status)
        rows.append(
            (escape(made.precision), status, counts or q.NOTHING, q.count(made.casts), sizes)
        )
    yield from table(("precision", "status", "initializers", "casts>", "size>"), rows)
    for made in report.conversions:
        if made.kept_fp32:
            names = q.first_names(list(map(code, made.kept_fp32)), _MOST_NAMES)
            yield from ("", f"Kept in fp32 in the {escape(made.precision)} graph: {names}.")


def checks(report: Report) -> Lines:
    """Yield every numerical comparison, below the failures."""
    yield from section("## Accuracy")
    yield "- Relative error: largest difference over largest reference value."
    yield "- Top-1: share of equal arg-max on the last axis."
    for check in report.checks:
        yield from section(f"### {check.target}: {escape(check.subject)}")
        limits = [
            text.format(f"{check.limits[name]:g}")
            for name, text in _LIMIT_TEXT.items()
            if name in check.limits
        ]
        shown = f" Limits: {', '.join(limits)}." if limits else ""
        yield f"Status: {status_text(check.status)}.{shown}"
        if check.failures:
            rows = [
                (
                    *map(escape, (line.subject, line.case)),
                    *map(code, (line.output, line.index, line.actual, line.expected)),
                    escape(line.problem),
                )
                for line in check.failures[:_MOST_FAILURES]
            ]
            yield from ("", *table(_FAILURE_COLUMNS, rows))
            further = len(check.failures) - _MOST_FAILURES
            if further > 0:
                yield from ("", f"… and {further} more failures in `report.json`.")
        yield from _comparisons(check)


def engines(report: Report) -> Lines:
    """Yield the engines, with separate columns for built, verified and timed."""
    yield from section("## Engines")
    if not report.engines:
        yield "The manifest has no engines."
        return
    columns = (
        "engine", "backend", "precision", "built", "size>", "build time>", "layers>", "verified",
        "timed",
    )  # fmt: skip
    rows = [
        (
            code(line.name),
            escape(line.backend),
            escape("; ".join(filter(None, (line.precision, line.executed)))),
            "yes" if line.built == "passed" else status_text(line.built),
            q.size(line.size_bytes),
            q.duration(line.build_seconds),
            q.count(line.layers),
            status_text(line.verified),
            status_text(line.timed),
        )
        for line in report.engines
    ]
    yield from table(columns, rows)
    devices = [
        f"- {code(line.name)}: {escape(line.device)}" for line in report.engines if line.device
    ]
    yield from ("", *devices) if devices else ()
    for made in report.engine_provenance:
        yield from section(f"### Engine {code(made.engine)}")
        yield from (f"- {escape(name)}: {escape(text)}" for name, text in made.lines.items())


def bench(report: Report) -> Lines:
    """Yield latencies and throughput, each engine above its baselines."""
    yield from section("## Benchmarks")
    if not report.bench:
        yield "No benchmark was run."
        return
    columns = (
        "engine", "case", "shape", "contender", "p50 (ms)>", "p90 (ms)>", "p95 (ms)>", "p99 (ms)>",
        "mean (ms)>", "samples>", "throughput (/s)>", "speed-up>",
    )  # fmt: skip
    rows = [
        (
            code(line.engine),
            *map(escape, (line.case, line.dims, contender_title(line.contender))),
            *map(q.significant, (line.p50_ms, line.p90_ms, line.p95_ms, line.p99_ms, line.mean_ms)),
            q.count(line.samples),
            q.significant(line.throughput_per_s),
            q.speedup(line.speedup),
        )
        for line in report.bench
    ]
    yield from table(columns, rows)
    yield ""
    yield "- Speed-up: p50 of eager PyTorch over p50 of the engine, both interleaved in one run."
    yield "- Throughput: batch items per second."
    yield from (f"- {escape(note)}" for note in report.bench_notes)
    yield from _on_gpu(report)


def _on_gpu(report: Report) -> Lines:
    if not report.gpu_timings:
        return
    columns = (
        "engine", "case", "contender", "GPU p50 (ms)>", "GPU p99 (ms)>", "wall p50 (ms)>",
        "wall p99 (ms)>", "throughput (/s)>", "queued (/s)>", "context memory>", "memory taken>",
    )  # fmt: skip
    rows = []
    for line in report.gpu_timings:
        times = (line.gpu_p50_ms, line.gpu_p99_ms, line.wall_p50_ms, line.wall_p99_ms)
        rates = (line.throughput_per_s, line.queued_throughput_per_s)
        memory = (line.device_memory_bytes, line.memory_taken_bytes)
        contender = escape(contender_title(line.contender))
        numbers = (*map(q.significant, (*times, *rates)), *map(q.size, memory))
        rows.append((code(line.engine), escape(line.case), contender, *numbers))
    yield from section("### On the GPU")
    yield from table(columns, rows)
    yield ""
    yield (
        "- GPU: time between two events on the stream, with inferences queued one after another."
        " Wall: time by the host's clock, from launch to completion."
    )
    yield "- Queued: batch items per second if the GPU never waits for a result to be fetched."
    if report.gpu_states:
        state_columns = (
            "engine", "case", "SM clock>", "memory clock>", "power>", "temperature>", "readings>",
            "throttled",
        )  # fmt: skip
        yield from ("", "Smallest, median and largest reading during the measurement:", "")
        state_rows = []
        for state in report.gpu_states:
            spans = (state.sm_clock_mhz, state.memory_clock_mhz, state.power_w, state.temperature_c)
            shown = (escape(span) or q.NOTHING for span in spans)
            readings = q.count(state.readings), escape(state.throttle)
            state_rows.append((code(state.engine), escape(state.case), *shown, *readings))
        yield from table(state_columns, state_rows)


_WITHIN = {True: "yes", False: "NO", None: q.NOTHING}  # the limits


def _comparisons(check: Check) -> Lines:
    found = check.comparisons
    if not found:
        yield from ("", "Nothing was compared.")
        return

    def badness(line: ComparisonLine) -> tuple[bool, bool, float]:
        relative = line.relative or 0.0
        return line.passed is False, relative != relative, relative

    worst = sorted(found, key=badness, reverse=True)[:_MOST_ROWS]
    shown = [line for line in found if line in worst] if len(found) > _MOST_ROWS else found
    columns = (
        "graph or engine", "case", "output", "max abs error>", "relative error>", "cosine>",
        "top-1>", "within limits",
    )  # fmt: skip
    rows = [
        (
            escape(line.subject),
            escape(line.case + (f" ({line.dims})" if line.dims and "=" not in line.case else "")),
            code(line.output),
            q.error(line.max_abs),
            q.error(line.relative),
            q.cosine(line.cosine),
            q.share(line.top1),
            "not informative" if line.uninformative else _WITHIN[line.passed],
        )
        for line in shown
    ]
    yield from ("", *table(columns, rows))
    if len(shown) < len(found):
        text = f"The {len(shown)} worst of {len(found)} comparisons; all are in `report.json`."
        yield from ("", text)
    remarks: dict[str, list[str]] = {}  # remark -> cases
    for line in found:
        for remark in (
            f"compared by policy {code(line.policy)}" if line.policy else "",
            escape(line.note),
            f"{line.uninformative}: equality proves nothing" if line.uninformative else "",
        ):
            if remark:
                text = f"{escape(line.subject)}, {code(line.output)}: {remark}"
                remarks.setdefault(text, []).append(line.case)
    if remarks:
        yield ""
    for text, cases in remarks.items():
        yield f"- {text} (case {', '.join(cases)})"
