"""Rooflines: the work of engines and layers against the measured speed of their device."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from buildsys.onnx_graphs.inspection.work import GraphWork, Work, bits_of
from buildsys.report import formatting as q
from buildsys.report.report_types import LayerLine, Report, Table, TimingLine
from buildsys.report.result_files import Result
from buildsys.stages.bench.result import BenchResult, MachineSpeed, headline

# of weights that a builder converts; the graphs of other precisions have their types
_WEIGHT_BITS = {"fp16": 16, "bf16": 16, "int8": 8, "fp8": 8}
_MOST_NODES = 50  # backends name no more of a layer
COMPUTE, MEMORY, UNKNOWN = "compute", "memory", "unknown"
_COLUMNS = (
    "engine", "case", "p50 ms>", "MACs>", "of the peak>", "bytes>", "of the bandwidth>", "bound",
)  # fmt: skip
_NOTES = (
    "MACs are multiply-accumulates; bytes are weights, inputs and outputs, each moved once.",
    "Peak and bandwidth: the fastest matrix product and copy, measured right after the timing.",
    "Above 100 %: fewer products (Winograd), narrower types, better kernels, or cached data.",
)


def add_rooflines(
    report: Report, results: Iterable[Result[BenchResult]], works: Mapping[str, GraphWork]
) -> Report:
    """Add the rooflines of benchmarks; ``works`` has the work of each engine's graph."""
    precisions = {line.name: line.precision for line in report.engines}
    rows, notes, lines, layers = [], [*_NOTES], list(report.bench), list(report.layers)
    for result in results:
        engine, speed = result.variant, result.content.get("machine")
        main = engine, *headline(result.content)[::2]
        places = [n for n, e in enumerate(lines) if (e.engine, e.case, e.contender) == main]
        if speed is None or not places:
            continue
        if (graph := works.get(engine)) is None:
            notes.append(f"{engine} is not built from an ONNX graph.")
            continue
        line, precision = lines[places[0]], precisions.get(engine, "")
        cache = speed.get("cache_bytes", 0)
        p50_ms = None if line.noisy else line.gpu_p50_ms or line.p50_ms
        work = graph.whole(_WEIGHT_BITS.get(precision))
        is_cached = work.bytes <= cache
        of_peak, of_bandwidth, bound = _judge(
            work, speed, p50_ms, bits_of(precision), is_cached=is_cached
        )
        line = replace(line, macs=work.macs, bytes=work.bytes, bound=bound)
        lines[places[0]] = line = replace(line, of_peak=of_peak, of_bandwidth=of_bandwidth)
        rows.append(_cells(line, p50_ms, speed, "≥ " if work.left_out else ""))
        left_out = [f"{name} {q.TIMES}{count}" for name, count in work.left_out.items()]
        own = [*speed.get("missing", []), *(["the benchmark is noisy"] if line.noisy else [])]
        own += [f"its data fit into the cache of {q.size(cache)}"] if is_cached else []
        own += [f"without {', '.join(left_out)}, which cannot be counted"] if left_out else []
        notes += [f"{engine}: {'; '.join(own)}."] if own else []
        layers = [
            _judge_layer(layer, graph, speed, is_cached=is_cached)
            if layer.engine == engine
            else layer
            for layer in layers
        ]
    if not rows:
        return report
    tables = (*report.tables, Table("Roofline", _COLUMNS, tuple(rows), tuple(notes)))
    return replace(report, bench=tuple(lines), tables=tables, layers=tuple(layers))


def _judge_layer(
    layer: LayerLine, graph: GraphWork, speed: MachineSpeed, *, is_cached: bool
) -> LayerLine:
    """Add work and bound to a layer whose nodes are all known."""
    bits = bits_of(layer.precision)
    work = graph.part(layer.nodes, bits) if len(layer.nodes) != _MOST_NODES else None
    if not work:
        return layer
    of_peak, of_bandwidth, bound = _judge(work, speed, layer.time_ms, bits, is_cached=is_cached)
    share = {COMPUTE: of_peak, MEMORY: of_bandwidth}.get(bound)
    return replace(layer, macs=work.macs, bytes=work.bytes, of_bound=share, bound=bound)


def _judge(
    work: Work, speed: MachineSpeed, time_ms: float | None, bits: int | None, *, is_cached: bool
) -> tuple[float | None, float | None, str]:
    """Compute the shares of peak and bandwidth in a measured time, and choose the larger.

    Types narrower than that of the measured product have a higher peak, wider ones a lower.
    """
    of_peak, of_bandwidth = (
        amount / rate * 1000 / time_ms if rate and time_ms else None
        for amount, rate in (
            (work.macs, speed.get("macs_per_s")),
            (work.bytes, speed.get("bytes_per_s")),
        )
    )
    if of_peak is None or of_bandwidth is None or work.left_out:
        return of_peak, of_bandwidth, UNKNOWN
    measured = bits_of(speed.get("macs_type", ""))
    if of_bandwidth < of_peak:
        bound = COMPUTE if bits == measured else UNKNOWN
    else:
        has_peak = bits and measured and bits <= measured
        bound = MEMORY if not is_cached and (has_peak or not work.macs) else UNKNOWN
    return of_peak, of_bandwidth, bound


def _cells(
    line: TimingLine, p50_ms: float | None, speed: MachineSpeed, least: str
) -> tuple[str, ...]:
    peak, bandwidth = speed.get("macs_per_s"), speed.get("bytes_per_s")
    shares = [
        q.NOTHING if share is None else f"{least}{q.percent(share, 0)} of {rate}"
        for share, rate in (
            (line.of_peak, f"{q.large(peak)}/s {speed.get('macs_type')}"),
            (line.of_bandwidth, f"{q.size(bandwidth)}/s"),
        )
    ]
    work = f"{least}{q.large(line.macs)}", f"{least}{q.size(line.bytes)}"
    first = line.engine, line.case, q.significant(p50_ms)
    return (*first, work[0], shares[0], work[1], shares[1], line.bound)
