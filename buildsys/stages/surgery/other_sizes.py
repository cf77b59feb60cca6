"""Comparison of the graphs before and after a step at further sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from onnx import TensorProto, numpy_helper

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import Dims, Inputs, concrete_shape, format_dims
from buildsys.onnx_graphs.onnx_file import all_nodes, load_model, tensors_of
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.stages.common.equivalence import Limits, open_graph, random_inputs
from buildsys.workers.job import Job

Spans = Mapping[str, Mapping[str, int]]  # dimension -> min, max, multiple_of
_SMALL = 4096  # elements of all inputs
_MOST_SMALL, _MOST_SUGGESTED = 64, 8  # sizes of a dimension
_MOST_CONSTANTS, _LARGEST = 16, 1 << 31
_NUMBERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)


def compare_other_sizes(
    job: Job, inputs: Inputs, before: Path, after: Path, limits: Limits
) -> None:
    """Compare two graphs at further sizes, where a step keeps all numbers.

    A graph can be wrong at one size only, and the graph before is right at any. Small inputs are
    compared at all sizes, others at those that the step's constants suggest.
    Raises: CheckFailed: they differ at one.
    """
    spans: Spans = job.options.get("spans", {})
    golden_sizes = [case["dims"] for case in job.options["cases"].values()]
    sizes = list(_sizes(inputs, spans, golden_sizes, _constants(after) - _constants(before)))
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
        for output, comparison in compared.items():
            if not comparison.passed:
                sentence = comparison.sentence("the graph after it", "the graph before")
                raise CheckFailed(
                    f"it changed {output} {where}: {sentence}", "correct the step, or narrow dims"
                )


def _sizes(
    inputs: Inputs, spans: Spans, golden_sizes: Sequence[Dims], constants: Iterable[int]
) -> Iterator[Dims]:
    """Yield new sizes of each dimension, with the others at their minimum."""
    numbers = sorted(constants)[:_MOST_CONSTANTS]
    # where a comparison with a constant, or with a remainder, may change
    suggested = [size for n in numbers for size in (n, n + 1, n - 1, *(n + m for m in numbers))]
    least = {**golden_sizes[0], **{name: span["min"] for name, span in spans.items()}}
    for name, span in spans.items():
        allowed = range(span["min"], span["max"] + 1, span["multiple_of"] or 1)
        near = [size for size in dict.fromkeys(suggested) if size in allowed][:_MOST_SUGGESTED]
        for size in dict.fromkeys((*near, *allowed[:_MOST_SMALL])):
            dims = {**least, name: size}
            shapes = (concrete_shape(tensor["shape"], dims) for tensor in inputs.values())
            is_small = sum(map(prod, shapes)) <= _SMALL
            if dims not in golden_sizes and (is_small or size in near):
                yield dims


def _constants(path: Path) -> set[int]:
    """List the single integers above 1 in a graph and its functions."""
    model, values = load_model(path, external_data=False), list[float]()
    for tensor in tensors_of(model):
        if prod(tensor.dims) == 1 and tensor.data_type in _NUMBERS:
            values.append(float(numpy_helper.to_array(tensor).item()))
    for body in (model.graph, *model.functions):
        for node in all_nodes(body):
            values += [a.i for a in node.attribute if a.name == "value_int"]
            values += [n for a in node.attribute if a.name == "value_ints" for n in a.ints]
    return {int(value) for value in values if 1 < value < _LARGEST and value == int(value)}
