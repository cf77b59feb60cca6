"""Sizes without golden outputs, for steps that keep all numbers.

A graph can be wrong at one size only. The graph before such a step has the right outputs at any
size, so small inputs are compared at all sizes, and others at those that the step's constants
suggest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path

from onnx import ModelProto, TensorProto, numpy_helper

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import Dims, concrete_shape, format_dims
from buildsys.manifest.surgery_interface import Inputs
from buildsys.onnx_graphs.onnx_file import all_nodes, load_model, tensors_of
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.stages.common.equivalence import Limits, random_inputs
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job

Spans = Mapping[str, Mapping[str, int]]  # dimension -> min, max, multiple_of
_SMALL = 4096  # elements of all inputs
_MOST_SMALL, _MOST_LARGE = 64, 8  # sizes of a dimension
_MOST_CONSTANTS, _LARGEST = 16, 1 << 31
_NUMBERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)


def compare_other_sizes(
    job: Job, inputs: Inputs, before: Path, after: Path, limits: Limits
) -> None:
    """Compare two graphs at further sizes.

    Raises: CheckFailed: they differ at one.
    """
    spans: Spans = job.options.get("spans", {})
    known = [case["dims"] for case in job.options["cases"].values()]
    sizes = list(_sizes(inputs, spans, known, _new_constants(before, after)))
    if not sizes:
        return
    graphs = {path: open_graph(job, path) for path in (before, after)}
    for number, dims in enumerate(sizes):
        job.count(number, len(sizes), "sizes")
        feeds = random_inputs(inputs, format_dims(dims), dims)
        try:
            expected = graphs[before].run(feeds)
        except StageError:  # the graph before it refuses the size
            continue
        where = f"at {format_dims(dims)}"
        try:
            actual = graphs[after].run(feeds)
        except StageError as error:
            raise CheckFailed(
                f"its graph cannot run {where}: {error.problem}", error.hint
            ) from error
        compared = compare_outputs(actual, expected, limits, inputs=feeds)
        for output, found in compared.items():
            if not found.passed:
                sentence = found.sentence("the graph after it", "the graph before")
                raise CheckFailed(f"it changed {output} {where}: {sentence}")


def _sizes(
    inputs: Inputs, spans: Spans, known: Iterable[Dims], constants: Iterable[int]
) -> Iterator[Dims]:
    """Yield new sizes of each dimension, with the others at their minimum."""
    tested = list(known)
    least = {**tested[0], **{name: span["min"] for name, span in spans.items()}}
    for name, span in spans.items():
        allowed = range(span["min"], span["max"] + 1, span["multiple_of"] or 1)
        near = _near(constants, allowed)[:_MOST_LARGE]
        for size in dict.fromkeys((*near, *allowed[:_MOST_SMALL])):
            dims = {**least, name: size}
            shapes = (concrete_shape(tensor["shape"], dims) for tensor in inputs.values())
            is_small = sum(map(prod, shapes)) <= _SMALL
            if dims not in tested and (is_small or size in near):
                tested.append(dims)
                yield dims


def _near(constants: Iterable[int], allowed: range) -> list[int]:
    """Return sizes at which a comparison with a constant, or a remainder, may change."""
    numbers = sorted(constants)[:_MOST_CONSTANTS]
    found = [size for n in numbers for size in (n, n + 1, n - 1)]
    for divisor in numbers:
        first = allowed[: min(divisor, _MOST_SMALL)]
        found += [n for rest in (0, *numbers) for n in first if n % divisor == rest]
    return [size for size in dict.fromkeys(found) if size in allowed]


def _new_constants(before: Path, after: Path) -> set[int]:
    """Return the integers above 1 that only the second graph contains."""
    models = (load_model(path, external_data=False) for path in (before, after))
    old, new = (set(_constants(model)) for model in models)
    return new - old


def _constants(model: ModelProto) -> Iterator[int]:
    values: list[float] = []
    for tensor in tensors_of(model):
        if prod(tensor.dims) == 1 and tensor.data_type in _NUMBERS:
            values += [float(numpy_helper.to_array(tensor).item())]
    bodies = (model.graph, *model.functions)
    for node in (node for body in bodies for node in all_nodes(body)):
        values += [a.i for a in node.attribute if a.name == "value_int"]
        values += [n for a in node.attribute if a.name == "value_ints" for n in a.ints]
    yield from (int(value) for value in values if 1 < value < _LARGEST and value == int(value))
