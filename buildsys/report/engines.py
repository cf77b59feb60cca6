"""The engines of a model, with the origin and the benchmarks of each."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from buildsys.manifest.shape_cases import format_dims
from buildsys.report import formatting as q
from buildsys.report.report_types import Accuracy, EngineLine, LayerLine, TimingLine, fill
from buildsys.report.result_files import ABSENT, AnyResult, Result, of_type
from buildsys.stages.bench.result import (
    ENGINE_CONTENDERS,
    ENGINE_CUDA_GRAPH,
    BenchCase,
    BenchResult,
)
from buildsys.stages.engine.result import EngineResult, SlowLayer
from buildsys.stages.evaluate.result import EvaluateResult
from buildsys.stages.table import BENCH, VERIFY

_SHOWN_DIGITS = 16
_SHOWN_TYPES = 2  # types of layers


def engine_lines(
    results: Sequence[AnyResult], manifest: Mapping[str, Any]
) -> tuple[EngineLine, ...]:
    """List one line per engine, from the results of three stages."""
    status = {(result.stage, result.variant): result.status for result in results}
    specs = {engine["name"]: engine for engine in manifest.get("engines", ())}
    timed, accuracies, lines = _timed_layers(results), _accuracies(results), []
    for result in of_type(results, EngineResult):
        content, name = result.content, result.variant
        spec: Mapping[str, Any] = specs.get(name, {})
        layers = content.get("layers")
        is_built = bool(content.get("engine_sha256"))
        line = EngineLine(
            name=name,
            backend=content.get("backend") or str(spec.get("backend") or ""),
            precision=str(spec.get("precision") or ""),
            built=result.status,
            verified=status.get((VERIFY, name), ABSENT),
            timed=status.get((BENCH, name), ABSENT),
            size_bytes=content.get("engine_bytes"),
            build_seconds=content.get("build_seconds"),
            layers=None if layers is None else sum(layers.values()),
            device=_device_text(content.get("device", {})),
            sha256=content.get("engine_sha256", ""),
            messages=tuple(content.get("messages", [])),
            executed=executed_precision(content),
            origin=engine_origin(content, timed.get(name, [])) if is_built else {},
            accuracy=accuracies.get(name),
        )
        lines.append(line)
    return tuple(lines)


def _accuracies(results: Sequence[AnyResult]) -> dict[str, Accuracy]:
    """Collect the finite metrics on data by engine."""
    accuracies, figures = {}, ("value", "original", "loss", "low", "high")
    for result in of_type(results, EvaluateResult):
        content: Mapping[str, Any] = result.content
        if all(math.isfinite(content.get(name, math.nan)) for name in figures):
            accuracies[result.variant] = fill(Accuracy, content)
    return accuracies


def _device_text(facts: Mapping[str, Any]) -> str:
    """Describe a device: ``AMD EPYC, 2 cores``."""
    if facts.get("missing"):
        return f"not on this machine: {facts['missing']}"
    texts: dict[str, Callable[[Any], str]] = {
        "name": str,
        "cores": lambda cores: q.plural(cores, "core"),
        "memory_bytes": lambda size: f"{q.size(size)} of memory",
        "driver": lambda version: f"driver {version}",
        "driver_cuda": lambda version: f"CUDA {version}",
    }
    return ", ".join(text(facts[name]) for name, text in texts.items() if facts.get(name))


def layer_lines(results: Sequence[AnyResult]) -> tuple[LayerLine, ...]:
    """List the recorded layers of every engine, the slowest first."""
    timed, lines = _timed_layers(results), []
    for result in of_type(results, EngineResult):
        content, sources = result.content, result.content.get("source_nodes")
        layers = content.get("layer_nodes", [])
        if any("time_ms" in layer for layer in layers):
            layers = sorted(layers, key=lambda layer: -layer.get("time_ms", 0.0))
        else:
            layers = content.get("slowest_layers", []) or layers or timed.get(result.variant, [])
        for layer in layers:
            name = layer.get("name", "")
            nodes = layer.get("nodes") or ([] if sources is None else sources.get(name, [name]))
            own = {"engine": result.variant, "name": name, "kind": layer.get("kind", "")}
            precision = layer.get("precision") or ""
            lines.append(fill(LayerLine, layer, **own, precision=precision, nodes=tuple(nodes)))
    return tuple(lines)


def _timed_layers(results: Sequence[AnyResult]) -> dict[str, list[SlowLayer]]:
    """List the layers that benchmarks have timed, by engine."""
    return {r.variant: r.content.get("slowest_layers", []) for r in of_type(results, BenchResult)}


def engine_origin(engine: EngineResult, timed: Sequence[SlowLayer]) -> dict[str, str]:
    """Describe the origin of a built engine: title -> text."""
    shares = engine.get("precision_shares", {})
    phases = engine.get("phases", {}).items()
    facts = engine.get("built_with", {}).items()
    libraries = {name: fact for name, fact in facts if fact and name != "instructions"}
    libraries |= engine.get("provider_libraries", {})
    lines = {
        "built with": q.plain(libraries or ""),
        "toolchain": engine.get("toolchain", {}).get("name", ""),
        "nodes by provider": placement_text(engine.get("placement", {}), timed),
        "precision of the layers": q.shares(shares.get("layers", {})),
        "precision of the time": q.shares(shares.get("time", {})),
        "operators in the delegate": _delegated(engine.get("delegated", {})),
        "raw images": "; ".join(
            f"{name}: {image.get('steps', '')}" for name, image in engine.get("images", {}).items()
        ),
        "custom operators": q.plain(engine.get("operators") or ""),
        "optimization profiles": "; ".join(
            f"{index}: {', '.join(f'{n} {_shape_range(shapes)}' for n, shapes in profile.items())}"
            for index, profile in enumerate(engine.get("profiles", []))
        ),
        "device memory": q.size(engine.get("device_memory_bytes")),
        "build": ", ".join(
            f"{name.replace('_', ' ')} {q.duration(seconds)}" for name, seconds in phases
        ),
        "refitted from": refit_origin(engine),
        "not refitted": engine.get("not_refitted", ""),
    }
    return {title: text for title, text in lines.items() if text not in ("", q.NOTHING)}


def placement_text(
    placement: Mapping[str, Mapping[str, Any]], timed: Sequence[SlowLayer] = ()
) -> str:
    """Describe a placement: ``openvino 6 (94 % of the time), cpu 1: det (Det)``, or ""."""
    shares = {layer.get("provider"): layer.get("provider_share") for layer in timed}
    parts = []
    for provider, nodes in placement.items():
        notes = []
        if (share := shares.get(provider)) is not None:
            notes.append(f"{q.percent(share, 0)} of the time")
        if nodes.get("shapes"):
            notes.append(f"{nodes['shapes']} of them for shapes")
        in_brackets = f" ({', '.join(notes)})" if notes else ""
        names = nodes.get("names", [])
        named = f": {', '.join(names)}" if names else ""
        parts.append(f"{provider} {nodes.get('nodes', 0)}{in_brackets}{named}")
    return ", ".join(parts)


def _delegated(delegated: Mapping[str, Any]) -> str:
    """Describe a delegate: ``98 %; in portable kernels: 2 mean, 1 permute_copy``."""
    if delegated.get("share") is None:
        return ""
    others = ", ".join(f"{count} {name}" for name, count in delegated.get("portable", {}).items())
    share = q.percent(delegated["share"], 0)
    return share + (f"; in portable kernels: {others}" if others else "")


def _shape_range(shapes: Mapping[str, list[int]]) -> str:
    low, opt, high = (str(shapes.get(point, [])) for point in ("min", "opt", "max"))
    return low if low == high else f"{low} to {high}, optimized for {opt}"


def executed_precision(engine: EngineResult) -> str:
    """List the recorded types of an engine's layers, or ""."""
    if counts := engine.get("int8_layers"):
        return f"int8: {counts['int8']} of {q.plural(counts['all'], 'layer')}"
    shares = engine.get("precision_shares", {}).get("layers", {})
    of = "network" if engine.get("precision_of") == "network" else "layers"
    return f"{of} {q.shares(shares, _SHOWN_TYPES)}" if shares else ""


def refit_origin(engine: EngineResult) -> str:
    """Describe the earlier build of a refitted engine, "" if it was built."""
    origin = engine.get("refitted_from", {})
    digest, started = origin.get("engine_sha256", ""), origin.get("started", "")
    if not digest or not started:
        return ""
    seconds = origin.get("build_seconds")
    took = "" if seconds is None else f" in {q.duration(seconds)}"
    return f"the engine {digest[:_SHOWN_DIGITS]}…, built {started}{took}"


_READINGS = {
    "sm_clock_mhz": "MHz", "memory_clock_mhz": "MHz", "power_w": "W", "temperature_c": "°C",
}  # fmt: skip
_TITLES = {
    ENGINE_CUDA_GRAPH: "engine, CUDA graph",
    "torch_cuda_graph": "torch, CUDA graph",
    "torch_compile": "torch.compile",
    "torch_tensorrt": "Torch-TensorRT",
    "onnxruntime": "ONNX Runtime (defaults)",
}


def contender_title(name: str) -> str:
    """Name a contender for people."""
    return _TITLES.get(name, name)


def timings(results: Iterable[AnyResult]) -> tuple[TimingLine, ...]:
    """List the latencies of all benchmarks, each engine above its baselines."""
    lines = []
    for result, case, figures in _cases(results):
        contenders = figures.get("contenders", {})
        for name in sorted(contenders, key=lambda name: (name not in ENGINE_CONTENDERS, name)):
            own: Mapping[str, Any] = contenders[name]
            gpu = own.get("gpu", {})
            line = fill(
                TimingLine,
                own,
                engine=result.variant,
                contender=name,
                case=case,
                dims=format_dims(figures.get("dims", {})) or "fixed",
                batch=figures.get("batch"),
                samples=own.get("count"),
                p50_interval_ms=tuple(own.get("p50_interval_ms") or ()) or None,
                noisy=bool(own.get("noisy")),
                gpu_p50_ms=gpu.get("p50_ms"),
                gpu_p99_ms=gpu.get("p99_ms"),
                queued_throughput_per_s=gpu.get("throughput_per_s"),
            )
            lines.append(line)
    return tuple(lines)


def bench_notes(results: Iterable[AnyResult]) -> tuple[str, ...]:
    """List notes on the benchmarks, each sentence once."""
    notes: list[str] = []
    for result in of_type(results, BenchResult):
        content = result.content
        notes += [f"Interleaving: {content['interleaving']}"] if "interleaving" in content else []
        notes += [f"CPU: {content['cpu']}"] if "cpu" in content else []
        for name, reason in content.get("left_out", {}).items():
            notes.append(f"{contender_title(name)} was not timed: {reason}")
        settings = {n: value for n, value in content.get("settings", {}).items() if n != "device"}
        text = q.plain(settings, between=" ")
        notes += [f"Settings of {result.variant}: {text}"] if settings else []
        for _, case, figures in _cases([result]):
            if (cut_s := figures.get("cut_to_s")) is not None:
                took = f"after {q.duration(cut_s)} of each contender"
                notes.append(f"{result.target}, case {case}: bench.budget ended {took}")
            if gpu := figures.get("gpu"):
                notes.append(f"{result.target}, case {case}: {_gpu_state(gpu)}")
    return tuple(dict.fromkeys(notes))


def _cases(results: Iterable[AnyResult]) -> Iterator[tuple[Result[BenchResult], str, BenchCase]]:
    for result in of_type(results, BenchResult):
        cases = result.content.get("cases", {})
        for case in sorted(cases, key=q.case_order):
            yield result, case, cases[case]


def _gpu_state(gpu: Mapping[str, Any]) -> str:
    """Describe clocks, power and throttling: smallest / median / largest reading."""
    parts = []
    for name, unit in _READINGS.items():
        values = [span[end] for end in ("min", "median", "max")] if (span := gpu.get(name)) else []
        title = name.rpartition("_")[0].replace("_", " ")
        parts += [f"{title} {' / '.join(f'{v:.0f}' for v in values)} {unit}"] if values else []
    causes = [f"{why} {q.percent(n, 0)}" for why, n in gpu.get("throttle", {}).items()]
    missing = gpu.get("missing")
    throttled = f"not known: {missing}" if missing else ", ".join(causes) or "no"
    return ", ".join((*parts, f"throttled: {throttled}"))
