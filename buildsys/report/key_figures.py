"""The key figure of each stage, for console and report."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from buildsys.onnx_graphs.result_types import ComparedCases
from buildsys.report import formatting as q
from buildsys.report.benchmarks import contender_title
from buildsys.report.commands import command_figure
from buildsys.report.formatting import case_order
from buildsys.report.results.reader import FAILED, NOISY, PASSED, RESULT_TYPES, parse
from buildsys.stages.bench.result import (
    ENGINE,
    ENGINE_CUDA_GRAPH,
    BenchResult,
    ContenderResult,
    engine_contender,
)
from buildsys.stages.engine.result import EngineResult
from buildsys.stages.gate.result import GateResult
from buildsys.stages.operators.result import OperatorsResult
from buildsys.stages.search.result import SearchedGraph, SearchResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.surgery.result import SurgeryResult

_CLEARLY_FASTER = 0.98
_SHOWN_TYPES = 2  # of the layers of an engine
_SHOWN_DIGITS = 16


def key_figure(stage: str, result: Mapping[str, Any]) -> str:
    """Return the key figure of a result file, "" if incomplete."""
    if stage not in _KEY_FIGURES:
        return ""
    try:
        return _KEY_FIGURES[stage](parse(result, RESULT_TYPES[stage]))
    except KeyError:
        return ""


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
    return f"worst relative error {q.error(worst[0])} ({worst[1]})" if worst else ""


def executed_precision(engine: EngineResult) -> str:
    """Return the recorded types of an engine's layers, or ""."""
    found = engine.get("precision_shares", {}).get("layers", {})
    of = "network" if engine.get("precision_of") == "network" else "layers"
    return f"{of} {q.shares(found, _SHOWN_TYPES)}" if found else ""


def refit_origin(engine: EngineResult) -> str:
    """Return the earlier build of a refitted engine, "" if it was built."""
    origin = engine.get("refitted_from", {})
    digest, started = origin.get("engine_sha256", ""), origin.get("started", "")
    if not digest or not started:
        return ""
    took = f" in {q.duration(origin['build_seconds'])}" if "build_seconds" in origin else ""
    return f"the engine {digest[:_SHOWN_DIGITS]}…, built {started}{took}"


def _engine(result: EngineResult) -> str:
    refitted = "refitted" if "refitted_from" in result else ""
    share = result.get("delegated", {}).get("share")
    delegated = "" if share is None else f"{q.percent(share, 0)} of the operators delegated"
    parts = (q.size(result["engine_bytes"]), executed_precision(result), delegated, refitted)
    return ", ".join(filter(None, parts))


def _operators(result: OperatorsResult) -> str:
    functions = sum(len(made) for made in result.get("functions", {}).values())
    libraries = len(result.get("libraries", {}))
    parts = [q.plural(functions, "local function")] if functions else []
    parts += [q.plural(libraries, "library", "libraries")] if libraries else []
    return ", ".join(parts) or "nothing to make"


def _simplify(result: SimplifyResult | SurgeryResult) -> str:
    return f"{q.count(result['before']['nodes'])} → {q.nodes(result['after']['nodes'])}"


def _bench(result: BenchResult) -> str:
    def p50(contender: ContenderResult) -> str:
        gpu = contender.get("gpu")
        by_gpu = f" (GPU {q.with_interval(gpu)})" if gpu else ""
        return f"p50 {q.with_interval(contender)} ms{by_gpu}"

    name = "opt" if "opt" in result["cases"] else next(iter(result["cases"]), "opt")
    case = result["cases"][name]
    contenders = case["contenders"]
    own = contenders[engine_contender(contenders)]
    if result.get("noisy") or own.get("noisy"):
        return f"noisy, no headline ({name}: p50 {q.latency(own['p50_ms'], noisy=True)} ms)"
    text = f"{name}: {p50(own)}, {q.significant(own['throughput_per_s'])}/s"
    speedup = case.get("speedup")
    text += f", {q.speedup(speedup)} torch" if speedup is not None else ""
    steady = {name: one for name, one in contenders.items() if not one.get("noisy")}
    graph = steady.get(ENGINE_CUDA_GRAPH)
    text += "" if graph is None or graph is own else f"; CUDA graph {p50(graph)}"
    fastest = min(steady, key=lambda one: steady[one].get("p50_ms", math.inf))
    if steady[fastest]["p50_ms"] < _CLEARLY_FASTER * min(
        steady[one]["p50_ms"] for one in (ENGINE, ENGINE_CUDA_GRAPH) if one in steady
    ):
        text += f"; {contender_title(fastest)} is faster: {p50(steady[fastest])}"
    noisy = q.first_names([contender_title(one) for one in contenders if one not in steady], 3)
    return f"{text}; noisy: {noisy}" if noisy else text


def _gate(result: GateResult) -> str:
    texts = []
    for check in result["checks"]:
        status, change = check["status"], check.get("change")
        if status == NOISY:
            change = None
        parts = [check["metric"].replace("_", " "), "" if change is None else q.change(change)]
        if status == FAILED or change is None:
            within = "not compared" if check.get("limit") is None else "within its limit"
            words = {PASSED: within, FAILED: "beyond its limit", NOISY: "undecided"}
            word = words.get(status, status)
            parts.append(word if change is None else f"({word})")
        texts.append(" ".join(filter(None, parts)))
    return ", ".join(texts)


def graph_error(graph: SearchedGraph) -> float | None:
    """Return the error of a searched graph; NaN if it is not finite."""
    error = graph.get("relative")
    return math.nan if error is None and graph.get("passed") is False else error


def search_figure(result: SearchResult) -> str:
    """Return the nodes in fp32, the errors without and with them, and the share of work left."""
    precision, kept = result["precision"], len(result["nodes"])
    before = graph_error(result["without"])
    if result["is_fp32"]:
        return f"all nodes stay in fp32: no choice of nodes in {precision} is within the limits"
    low = result.get("macs_low")
    work = "" if low is None else f", {q.percent(low)} of the MACs in {precision}"
    if not kept:
        return f"all nodes in {precision}: relative error {q.error(before)}{work}"
    after = graph_error(result["with"])
    nodes = f"{kept} of {q.nodes(result['candidates'])} in fp32"
    return f"{nodes}: relative error {q.error(before)} → {q.error(after)}{work}"


_KEY_FIGURES: Mapping[str, Callable[[Any], str]] = {
    "operators": _operators,
    "export": lambda result: (
        f"opset {result['opset']}, {q.nodes(result['nodes'])}, {q.size(result['bytes'])}"
    ),
    "program": lambda result: (
        f"{q.plural(sum(result['operators'].values()), 'operator')}, {q.size(result['bytes'])}"
    ),
    "reference": lambda result: (
        f"{'case' if len(result['cases']) == 1 else 'cases'} "
        f"{', '.join(sorted(result['cases'], key=case_order))}"
    ),
    "surgery": lambda result: f"{q.plural(len(result['steps']), 'step')}, {_simplify(result)}",
    "simplify": _simplify,
    "calibrate": lambda result: (
        f"{q.count(result.get('tensors'))} ranges, "
        f"{q.plural(result['batches'], 'batch', 'batches')}, {result['algorithm']}"
    ),
    "search": search_figure,
    "convert": lambda result: f"{q.size(result['bytes_before'])} → {q.size(result['bytes_after'])}",
    "validate": lambda result: error_text(worst_comparison(result["graphs"])),
    "engine": _engine,
    "verify": lambda result: error_text(worst_comparison({"": result["cases"]})),
    "bench": _bench,
    "gate": _gate,
    "command": command_figure,
}
