"""Simplify an exported graph, and show that the result is valid, has the same interface and computes the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.onnx_graphs.interface import interface, interface_changes
from buildsys.onnx_graphs.onnx_file import (
    check_file,
    copy_model,
    file_bytes,
    file_facts,
    has_input_initializers,
    load_model,
)
from buildsys.onnx_graphs.result_types import GraphSummary
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Tensor, tensor_of
from buildsys.stages.common.equivalence import (
    Limits,
    Runtime,
    compare_cases,
    limits_of,
    random_operators,
    refuse_random_graph,
    run_cases,
)
from buildsys.stages.simplify import onnxsim, onnxslim
from buildsys.workers.job import Job, StageResult

Tool = Callable[[Path, Path, Mapping[str, Any], bool], None]
Outputs = dict[str, dict[str, Tensor]]  # by case

_LARGE_BYTES = 1 << 30
_TOOLS: Mapping[str, Tool] = {"onnxsim": onnxsim.simplify, "onnxslim": onnxslim.simplify}


def run(job: Job) -> StageResult:
    """Simplify ``model`` by the manifest's tool; a result that is not the same network fails.

    Raises: StageError: the exported graph is not valid or the tool gave up. CheckFailed: the result is
        not valid, or has another interface or other outputs than the exported graph.
    """
    source, target, spec = job.inputs["model"], job.outputs["model"], job.options["simplify"]
    check_file(source, "the exported graph")
    original = load_model(source, external_data=False)
    before = file_facts(original, source)
    promised, limits = interface(original), limits_of(original)
    initializers_are_inputs = has_input_initializers(original)
    if spec["tool"] == "none":
        _only_defaults(spec)
        copy_model(source, target)
        return StageResult(figures=_figures("none", before, before, {}))
    del original  # the weights of a large graph are not kept while the tool holds its own copies
    runtime, feeds = Runtime.of(job), _feeds(job, promised["input"])
    comparable = runtime.implementation.is_complete_for(source)
    with _beside(job, source) as beside:
        expected = beside(lambda: run_cases(source, feeds, runtime) if comparable else {})
        job.progress(f"simplifying {before['nodes']} nodes with {spec['tool']}")
        _TOOLS[spec["tool"]](source, target, spec, initializers_are_inputs)
        after = _checked(target, promised, spec["tool"])
        outputs = expected()
    if not comparable:  # validate says so; other backends' engines may be built
        warnings = [
            "both graphs were not compared: ONNX Runtime has no implementation of an operator"
        ]
        return StageResult(
            figures={**_figures(spec["tool"], before, after, {}), "warnings": warnings}
        )
    job.progress(f"comparing both graphs in {len(feeds)} cases")
    equal = _equal_outputs(
        job, runtime, feeds, outputs, limits, random_operators(before["operators"])
    )
    return _judged(equal, _figures(spec["tool"], before, after, equal))


def _judged(equal: Mapping[str, Mapping[str, Comparison]], figures: dict[str, Any]) -> StageResult:
    for case, outputs in equal.items():
        for name, found in outputs.items():
            if found.problem:
                sentence = found.sentence("the simplified graph", "the exported graph")
                reason = f"{name} changed by simplification in case {case}: {sentence}"
                return StageResult("failed", reason, figures=figures)
    return StageResult(figures=figures)


def random_inputs(
    inputs: Mapping[str, Any], case: str, dims: Mapping[str, int]
) -> dict[str, Tensor]:
    """Return seeded inputs of one shape case: normal floats, integers 0 or 1 (valid indices everywhere)."""
    return {
        name: _random_tensor(
            spec["dtype"],
            concrete_shape(spec["shape"], dims),
            zlib.crc32(f"{case}/{name}".encode()),
        )
        for name, spec in inputs.items()
    }


def _random_tensor(dtype: str, shape: tuple[int, ...], seed: int) -> Tensor:
    rng = np.random.default_rng(seed)
    if dtype.startswith("float") or dtype == "bfloat16":
        return tensor_of(rng.standard_normal(shape, dtype=np.float32), dtype)
    if dtype.startswith("complex"):
        return tensor_of(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype)
    bits = rng.integers(0, 2, shape)
    return tensor_of(np.where(bits, "a", "b") if dtype == "string" else bits, dtype)


def _checked(target: Path, promised: dict[str, Any], tool: str) -> GraphSummary:
    """Return what is told of the simplified graph, which must be valid and keep its interface."""
    simplified = load_model(target, external_data=False)
    try:
        check_file(target, f"what {tool} made of the graph")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    changed = next(interface_changes(promised, interface(simplified)), None)
    if changed:
        raise CheckFailed(
            f"{tool} changed the interface of the graph: {changed}",
            "simplify: {tool: none} keeps it",
        )
    return file_facts(simplified, target)


def _feeds(job: Job, graph_inputs: list[dict[str, Any]]) -> dict[str, dict[str, Tensor]]:
    """Return case -> inputs of both graphs."""
    # a graph without its parameters has them as further inputs, whose shapes are fixed
    fixed = {
        port["name"]: port
        for port in graph_inputs
        if all(isinstance(size, int) for size in port["shape"] or ("",))
    }
    inputs = {**fixed, **job.options["inputs"]}
    return {case: random_inputs(inputs, case, dims) for case, dims in job.options["cases"].items()}


@contextmanager
def _beside(
    job: Job, source: Path
) -> Iterator[Callable[[Callable[[], Outputs]], Callable[[], Outputs]]]:
    """Give what begins work in a thread, and returns what waits for its result.

    The tools compute on one core. Where a job has no other, or the graph is so large that a session beside the
    tool's copies of it may be too much, the work begins when its result is asked for.
    """
    if job.threads == 1 or file_bytes(source) > _LARGE_BYTES:
        yield lambda work: work
        return
    with ThreadPoolExecutor(max_workers=1) as pool:
        yield lambda work: pool.submit(work).result


def _equal_outputs(
    job: Job,
    runtime: Runtime,
    feeds: Mapping[str, Any],
    expected: Outputs,
    limits: Limits,
    drawn_by: list[str],
) -> dict[str, dict[str, Comparison]]:
    """Run the simplified graph, and compare."""
    actual = run_cases(job.outputs["model"], feeds, runtime)
    equal = compare_cases(actual, expected, limits)
    if drawn_by or any(found.problem for outputs in equal.values() for found in outputs.values()):
        first = next(iter(feeds.values()))
        refuse_random_graph(
            job.inputs["model"], "the exported graph", first, limits, drawn_by, runtime
        )
    return equal


def _only_defaults(spec: Mapping[str, Any]) -> None:
    changed = [name for name in ("constant_folding", "shape_inference", "fuse") if not spec[name]]
    changed += ["tensor_size_threshold"] if spec["tensor_size_threshold"] is not None else []
    if changed:
        raise StageError(
            f"simplify.{changed[0]} has no effect with tool: none", "remove it or choose a tool"
        )


def _figures(
    tool: str, before: Any, after: Any, equal: Mapping[str, Mapping[str, Comparison]]
) -> dict[str, Any]:
    counts = {
        op: (before["operators"].get(op, 0), after["operators"].get(op, 0))
        for op in before["operators"]
    }
    counts |= {op: (0, count) for op, count in after["operators"].items() if op not in counts}
    return {
        "tool": tool,
        "before": before,
        "after": after,
        "removed": {op: was - now for op, (was, now) in counts.items() if was > now},
        "added": {op: now - was for op, (was, now) in counts.items() if now > was},
        "equal": {
            case: {name: found.figures() for name, found in outputs.items()}
            for case, outputs in equal.items()
        },
        "checker": "passed",
    }
