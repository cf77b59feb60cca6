"""The engines of a model and what their benchmarks measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from buildsys.report.checks import case_order
from buildsys.report.gpu_timing import contender_words, in_order, own_contender
from buildsys.report.result_files import ABSENT, Result, mapping, number, texts, whole
from buildsys.report.results.report import EngineLine, Timing

_FEW_SAMPLES = 100  # below this, p99 is the largest sample


def engine_lines(results: Iterable[Result], manifest: Mapping[str, Any]) -> tuple[EngineLine, ...]:
    """Return one line per engine target; built, verified and timed each from its own result."""
    by_target = {(result.stage, result.variant): result for result in results}
    asked = {engine["name"]: engine for engine in manifest.get("engines", ())}
    return tuple(
        _engine_line(result, by_target, asked.get(name, {}))
        for (stage, name), result in by_target.items()
        if stage == "engine"
    )


def timings(results: Iterable[Result]) -> tuple[Timing, ...]:
    """Return the measured latencies of all benchmarks, the engine first and its baselines below it."""
    return tuple(
        timing for result in results if result.stage == "bench" for timing in _timings(result)
    )


def bench_notes(results: Iterable[Result]) -> tuple[str, ...]:
    """Return how the benchmarks were measured, and what weakens their figures; each sentence once."""
    notes: dict[str, None] = {}
    for result in results:
        if result.stage == "bench" and result.figures:
            notes.update(dict.fromkeys(_notes(result)))
    return tuple(notes)


def _engine_line(
    result: Result, by_target: Mapping[tuple[str, str], Result], asked: Mapping[str, Any]
) -> EngineLine:
    figures, name = result.figures, result.variant
    return EngineLine(
        name=name,
        backend=str(figures.get("backend") or asked.get("backend") or ""),
        precision=str(asked.get("precision") or ""),
        built=result.status,
        verified=_status(by_target, "verify", name),
        timed=_status(by_target, "bench", name),
        size_bytes=whole(figures.get("engine_bytes")),
        build_seconds=number(figures.get("build_seconds")),
        layers=_layers(figures.get("layers")),
        device=_device(figures.get("device")),
        sha256=str(figures.get("engine_sha256") or ""),
        messages=texts(figures.get("messages")),
        toolchain=_toolchain(result),
    )


def _toolchain(result: Result) -> str:
    name = result.toolchain.get("name")
    versions = ", ".join(
        f"{library} {version}" for library, version in result.toolchain.items() if library != "name"
    )
    return (f"{name} ({versions})" if versions else name) if name else ""


def _status(by_target: Mapping[tuple[str, str], Result], stage: str, name: str) -> str:
    result = by_target.get((stage, name))
    return result.status if result else ABSENT


def _layers(value: object) -> int | None:
    """Return the number of layers from their count, their list, or counts by kind."""
    if isinstance(value, Mapping):
        return sum(whole(count) or 0 for count in value.values())
    return len(value) if isinstance(value, (list, tuple)) else whole(value)


def _device(value: object) -> str:
    facts = mapping(value)
    if facts.get("missing"):
        return f"here {facts['missing']}"
    further = (
        f"{key.replace('_', ' ')} {entry}"
        for key, entry in facts.items()
        if key not in ("kind", "name")
    )
    return ", ".join((str(facts.get("name", "")), *further)) if facts else ""


def _timings(result: Result) -> Iterator[Timing]:
    cases = mapping(result.figures.get("cases"))
    for case in sorted(cases, key=case_order):
        figures = mapping(cases[case])
        contenders = mapping(figures.get("contenders"))
        for contender in in_order(contenders):
            yield _timing(result.variant, case, contender, figures, mapping(contenders[contender]))


def _timing(
    engine: str, case: str, contender: str, figures: Mapping[str, Any], own: Mapping[str, Any]
) -> Timing:
    dims, main = mapping(figures.get("dims")), own_contender(mapping(figures.get("contenders")))
    percentiles = (
        "p50_ms",
        "p90_ms",
        "p95_ms",
        "p99_ms",
        "mean_ms",
        "min_ms",
        "max_ms",
        "throughput_per_s",
    )
    return Timing(
        engine=engine,
        contender=contender,
        case=case,
        dims=", ".join(f"{name} {value}" for name, value in dims.items()) or "fixed",
        batch=whole(figures.get("batch")),
        samples=whole(own.get("count")),
        speedup=number(figures.get("speedup")) if contender == main else None,
        **{key: number(own.get(key)) for key in percentiles},
    )


def _notes(result: Result) -> Iterator[str]:
    yield from (
        f"{label}: {_plain(value)}" for label, value in _measured_how(result.figures) if value
    )
    few = {
        timing.samples
        for timing in _timings(result)
        if timing.samples and timing.samples < _FEW_SAMPLES
    }
    if few:
        yield f"{result.target}: as few as {min(few)} samples; a p99 of fewer than {_FEW_SAMPLES} is their maximum"


def _measured_how(figures: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    yield "Interleaving", figures.get("interleaving")
    yield "CPU", figures.get("cpu")
    for name, reason in mapping(figures.get("left_out")).items():
        yield f"{contender_words(name)} was left out", reason
    yield (
        "Settings",
        {key: value for key, value in mapping(figures.get("settings")).items() if key != "device"},
    )


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(entry)}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return " ".join(map(_plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
