"""buildsys compare: differences between two graphs, or recorded builds, engines or models."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from buildsys.cli.build_names import BuildNames, Side
from buildsys.cli.command import add_json, add_names, print_json, print_lines
from buildsys.cli.commands.explain import reasons_json
from buildsys.cli.console.rows import titled_lines
from buildsys.cli.graph_files import (
    EQUAL,
    StagePair,
    compare_graphs,
    compare_recorded_graphs,
    names_graph,
    recorded_difference_lines,
    without_time,
)
from buildsys.cli.session import BuildSession
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.errors import UsageError
from buildsys.execution.key_parts import flatten_options
from buildsys.execution.stale_reasons import StaleReason, format_reasons, part_reasons
from buildsys.history.builds import Build
from buildsys.history.compare import (
    INCOMPARABLE,
    FigureChange,
    LatencyChange,
    compare_figures,
    compare_latencies,
)
from buildsys.history.database import History, history_file
from buildsys.report.formatting import count, duration, error, fold, latency, plural, size
from buildsys.stages.table import BENCH, ENGINE_STAGES, STAGES

SCHEMA = "buildsys/compare/1"
_INDENT = 14
_SHOWN_FIELDS = 12
_ORDER = {
    stage.name: place
    for place, stage in enumerate(STAGES)
    if stage.name in ENGINE_STAGES or (stage.compared and stage.planned_for == "network")
}
_section = partial(titled_lines, indent=_INDENT)


@dataclass
class BuildComparison:
    """The differences between two sides."""

    first: Side
    second: Side
    manifest: list[StaleReason] = field(default_factory=list)
    environment: list[StaleReason] = field(default_factory=list)
    graphs: list[StagePair] = field(default_factory=list)
    figures: list[FigureChange] = field(default_factory=list)
    latencies: list[LatencyChange] = field(default_factory=list)
    engines: dict[str, str] = field(default_factory=dict)  # engines of one side -> first or second

    @property
    def changed_figures(self) -> list[FigureChange]:
        """The figures with a difference."""
        return [change for change in self.figures if change.first != change.second]

    @property
    def failures(self) -> dict[str, list[str]]:
        """The targets that failed on one side only, or for another reason, with both reasons."""
        reasons = [
            {target: build.reason for target, build in side.failures.items()}
            for side in (self.first, self.second)
        ]
        return {
            target: [side.get(target, "") for side in reasons]
            for target in {**reasons[0], **reasons[1]}
            if reasons[0].get(target) != reasons[1].get(target)
        }

    @property
    def is_empty(self) -> bool:
        """True if nothing differs, and nothing was measured again."""
        parts = self.manifest, self.environment, self.engines, self.changed_figures
        return not any((*parts, self.latencies, self.failures)) and all(
            pair.state == EQUAL for pair in self.graphs
        )

    def as_json(self) -> dict[str, Any]:
        """Convert the comparison for ``--json``."""
        return {
            "first": self.first.as_json(),
            "second": self.second.as_json(),
            "manifest": reasons_json(self.manifest),
            "environment": reasons_json(self.environment),
            "graphs": [pair._asdict() for pair in self.graphs],
            "engines": self.engines,
            "failures": self.failures,
            "figures": [asdict(change) for change in self.figures],
            "latencies": [
                {**asdict(change), "ratio": change.ratio, "ratio_interval": change.ratio_interval}
                for change in self.latencies
            ],
        }


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys compare``."""
    add_names(parser, "[NAME][@WHEN] [[NAME][@WHEN]]")
    parser.epilog = (
        "NAME is a model, an engine (MODEL:ENGINE) or a graph (MODEL:simplify), by default every\n"
        "model; WHEN is last, previous, an id from `buildsys history` or a git revision; without\n"
        "names, @previous and @last are compared; two graphs are compared node by node;\n"
        "buildsys bisect finds the change that made an engine worse"
    )
    add_json(parser)
    add_filter(parser)


def run(options: Namespace) -> int:
    """Print the differences; the exit code is 0 with or without any."""
    if len(options.names) > 2:
        raise UsageError("compare takes at most two names", "`buildsys help compare` explains them")
    session = BuildSession.of_history(options.root)
    if any(names_graph(session, name) for name in options.names):
        first, *others = options.names
        second = others[0] if others else without_time(first)
        if first == second:
            first = f"{first}@previous"
        return compare_graphs(session, options, first, second)
    history = History.readable(history_file(session.project.state))
    pairs = BuildNames(session, history).pairs(options.names, ModelFilter.of(options))
    compared = [_compare(session, history, *pair) for pair in pairs]
    if options.json:
        print_json(
            {"schema": SCHEMA, "comparisons": [comparison.as_json() for comparison in compared]}
        )
        return 0
    printed = [
        comparison for comparison in compared if not comparison.is_empty or len(compared) == 1
    ]
    for comparison in printed:
        print_lines(_lines(comparison))
    if len(compared) > len(printed):
        print_lines([f"{plural(len(compared) - len(printed), 'model')} without a difference"])
    return 0


def _compare(session: BuildSession, history: History, first: Side, second: Side) -> BuildComparison:
    comparison = BuildComparison(first, second)
    before, after = (_manifest(history, side) for side in (first, second))
    if before and after:
        comparison.manifest = part_reasons(before, after)
    engines = [side.engines() for side in (first, second)]
    paired = {name: name for name in engines[0] if name in engines[1]}
    if first.engine and second.engine:
        paired = {first.engine: second.engine}
    else:
        for names, others, side in (
            (engines[0], engines[1], "first"),
            (engines[1], engines[0], "second"),
        ):
            comparison.engines |= {name: side for name in names if name not in others}
    pairs: list[tuple[Build, Build]] = []
    for build in sorted(first.builds.values(), key=lambda build: _ORDER.get(build.stage, -1)):
        of_engine = build.stage in ENGINE_STAGES
        variant = paired.get(build.variant) if of_engine else build.variant
        match = None if variant is None else second.of(build.stage, variant)
        if build.stage in _ORDER and match is not None and match.id != build.id:
            pairs.append((build, match))
    comparison.figures = compare_figures(pairs)
    environments: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for pair in pairs:
        for environment, build in zip(environments, pair, strict=True):
            environment.update(history.environment(build))
        if pair[0].stage == BENCH:
            comparison.latencies += compare_latencies(history, *pair)
    # a tool of one side only belongs to a target that the other does not have
    labels = environments[0].keys() & environments[1].keys()
    comparison.environment = part_reasons(
        *({n: parts[n] for n in labels} for parts in environments)
    )
    comparison.graphs = compare_recorded_graphs(session, first, second)
    return comparison


def _manifest(history: History, side: Side) -> dict[str, str]:
    """Flatten the fields of a manifest by path, without other engines."""
    manifest = history.manifest(side.moment)
    engines = {str(engine.pop("name", "")): engine for engine in manifest.pop("engines", [])}
    if side.engine:
        manifest["engine"] = engines.get(side.engine, {})
    else:
        manifest["engines"] = engines
    manifest.pop("model", None)
    return flatten_options(manifest, "config:")


def _lines(comparison: BuildComparison) -> Iterator[str]:
    """Yield the comparison as text."""
    yield f"{comparison.first.title()}"
    yield f"→ {comparison.second.title()}"
    for side in (comparison.first, comparison.second):
        if side.note:
            yield side.note
    if comparison.is_empty:
        yield "  no difference"
        return
    yield from _section("manifest", _shown(comparison.manifest))
    yield from _section("environment", _shown(comparison.environment))
    failures = [
        f"{target}, in the {word} build: {fold(reason)[0]}"
        for target, reasons in comparison.failures.items()
        for word, reason in zip(("first", "second"), reasons, strict=True)
        if reason
    ]
    yield from _section("failures", failures)
    yield from recorded_difference_lines(comparison.graphs)
    only = [f"{name}: only in the {side}" for name, side in comparison.engines.items()]
    yield from _section("engines", only)
    figures: dict[str, list[str]] = {"accuracy": [], "size": [], "build time": []}
    for change in comparison.changed_figures:
        figures[_SECTIONS.get(change.figure, "size")].append(_figure(change))
    if any(change.figure == "relative" for change in comparison.figures):
        figures["accuracy"] = figures["accuracy"] or ["unchanged"]
    for title, lines in figures.items():
        yield from _section(title, lines)
    yield from _section("latency", [_latency(change) for change in comparison.latencies])


def _shown(reasons: Sequence[StaleReason]) -> list[str]:
    lines = format_reasons(reasons)
    more = len(lines) - _SHOWN_FIELDS
    return lines[:_SHOWN_FIELDS] + ([f"and {more} more (--json lists all)"] if more > 0 else [])


_SECTIONS = {"relative": "accuracy", "build_seconds": "build time"}
_NAMES = {
    "relative": "relative error ", "device_memory_bytes": "GPU memory ", "nodes": "nodes ",
}  # fmt: skip


def _figure(change: FigureChange) -> str:
    """Format as ``engine:m:ort: 46.8 MB → 40.1 MB (-14 %)``."""
    format_value: Callable[[float], str] = {
        "relative": error, "build_seconds": duration, "nodes": lambda value: count(int(value)),
    }.get(change.figure, size)  # fmt: skip
    first, second = (
        "not finite" if value is None else format_value(value)
        for value in (change.first, change.second)
    )
    percent = ""
    if change.first and change.second is not None and change.figure != "relative":
        percent = f" ({100 * (change.second / change.first - 1):+.1f} %)"
    return f"{change.target}: {_NAMES.get(change.figure, '')}{first} → {second}{percent}"


def _latency(timing: LatencyChange) -> str:
    """Format as ``bench:m:ort opt: 1.23 → 1.30 ms (+5.7 %, …): slower``."""
    first, second = (
        latency(p50_ms, noisy=timing.noisy)
        + (f" [{', '.join(latency(end, noisy=timing.noisy) for end in ends)}]" if ends else "")
        for p50_ms, ends in (
            (timing.first_ms, timing.first_interval_ms),
            (timing.second_ms, timing.second_interval_ms),
        )
    )
    place = f"{timing.target} {timing.case}"
    place += "" if timing.contender == "engine" else f" {timing.contender}"
    place += ", GPU" if timing.clock == "gpu" else ""
    text = f"{place}: {first} → {second} ms"
    span = timing.ratio_interval
    if timing.ratio is None or span is None:
        return f"{text}, {INCOMPARABLE}: {timing.reason}"
    change = f"{100 * (timing.ratio - 1):+.1f} %"
    low, high = (f"{100 * (end - 1):+.1f}" for end in span)
    return f"{text} ({change}, {low} to {high} %): {timing.verdict}"
