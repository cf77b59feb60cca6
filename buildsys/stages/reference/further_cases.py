"""Further golden cases, for ``validate`` and ``verify``: other sizes and other seeds.

The shape cases see four sizes and one set of values. A wrong branch between them would pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims, concrete_shape
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.reference.original import Original, golden_inputs, not_finite
from buildsys.stages.reference.sizes import all_sizes, draw_sizes, sizes_with, within_budget
from buildsys.workers.job import Job

if TYPE_CHECKING:
    from buildsys.models.resized_inputs import Resize

_DRAWN_SHARE = 0.25  # share of the shape cases' elements
_MOST_NUMBERS = 3  # sizes of large inputs that are numbers in the code
_LARGE = 4096  # elements of all inputs
# of all cases with other sizes: their number, also with many layers, and a budget of elements,
# and of products of elements and weights, which bound the operations
_MOST_SIZES, _MOST_LAYERS, _MOST_ELEMENTS, _MOST_PRODUCTS = 256, 8192, 1 << 20, 1 << 32
_SAMPLE_SEED = 1000  # other values than those of the cases


class FurtherCase(NamedTuple):
    """One case with its sizes, and the origin of its values."""

    name: str
    dims: Dims
    values: Mapping[str, Any]  # golden_input's arguments: case, seed


def further_cases(
    job: Job, original: Original, resizes: Sequence[Resize] = ()
) -> Iterator[FurtherCase]:
    """Yield the planned cases: drawn sizes, those that ``resizes`` round apart, other seeds.

    Large inputs have few: the smallest new size, other drawn sizes only up to a quarter of the
    shape cases, and the numbers in the network's code.
    """
    options, seed = job.options["further"], job.options["source"]["seed"]

    def elements(dims: Dims) -> int:
        return input_elements(job, dims)

    planned, spans = list(job.options["cases"].values()), options["spans"]
    is_large = elements(options["dims"]) > _LARGE
    sizes: list[Dims] = []
    if options["sizes"]:
        share = budget = sum(map(elements, planned)) * _DRAWN_SHARE
        drawn = draw_sizes(spans, planned, seed, smallest_first=is_large)
        for dims in sorted(islice(drawn, options["drawn"]), key=elements):
            budget -= elements(dims)
            if budget >= 0 or not sizes or elements(dims) <= _LARGE:
                sizes.append(dims)
        if original.module is not None:
            from buildsys.models.code_numbers import code_numbers
            from buildsys.models.resized_inputs import rounded_apart

            apart = rounded_apart(resizes, spans, job.options["cases"])
            sizes += sizes_with(apart, spans, [*planned, *sizes])
            if is_large:
                numbers = [
                    (name, n) for n in code_numbers(original.module, job.project) for name in spans
                ]
                new = sizes_with(numbers, spans, [*planned, *sizes])
                sizes += within_budget(new, elements, share, _MOST_NUMBERS)
    for name, dims in zip(options["sizes"], sizes, strict=False):
        yield FurtherCase(name, dims, {"case": name, "seed": seed})
    for name in options["values"]:
        kind, _, number = name.partition("-")
        if kind == "seed" and not (is_large and (number == "2" or sizes)):
            values = {"case": "min", "seed": seed + int(number)}  # callables know the case
            yield FurtherCase(name, options["dims"], values)


def value_dims(job: Job) -> Dims:
    """Choose the sizes for special values: the largest of small inputs, or else the least."""
    planned = job.options["cases"].values()
    small = [dims for dims in planned if input_elements(job, dims) <= _LARGE]
    return max(small, key=lambda d: input_elements(job, d), default=job.options["further"]["dims"])


def is_small(job: Job) -> bool:
    """Check if the inputs of further values are small."""
    return input_elements(job, value_dims(job)) <= _LARGE


def input_elements(job: Job, dims: Dims) -> int:
    """Count the elements of all inputs."""
    shapes = (tensor["shape"] for tensor in job.options["inputs"].values())
    return sum(prod(concrete_shape(shape, dims)) for shape in shapes)


def small_cases(job: Job, original: Original, usual: Collection[tuple[str, str]]) -> list[Case]:
    """Compute cases at all sizes of small inputs, within a fixed budget of elements and time."""
    further, module = job.options["further"], original.module
    if module is None or not further["sizes"]:
        return []
    weights = sum(parameter.numel() for parameter in module.parameters())
    layers, seed = sum(1 for _ in module.modules()), job.options["source"]["seed"]

    def cost(dims: Dims) -> int:
        return input_elements(job, dims) * max(weights, _MOST_PRODUCTS // _MOST_ELEMENTS)

    sizes = all_sizes(further["spans"], job.options["cases"].values(), seed)
    most, cases = min(_MOST_SIZES, _MOST_LAYERS // layers), list[Case]()
    for dims in within_budget(sizes, cost, _MOST_PRODUCTS, most):
        with suppress(StageError):  # the original refuses what the manifest allows
            inputs = golden_inputs(job, dims, {"case": "min", "seed": seed})
            outputs = original.call(inputs, dims)
            if not not_finite(outputs).keys() - usual:
                cases.append(original.case(inputs, outputs))
    return cases


def samples(job: Job, original: Original, usual: Collection[tuple[str, str]]) -> Iterator[Case]:
    """Yield cases of one size and other values, as many as the data has."""
    options, seed = job.options["samples"], job.options["source"]["seed"]
    for number in range(options["calls"]):
        values = {"case": "opt", "seed": seed + _SAMPLE_SEED + number, "sample": number}
        try:
            inputs = golden_inputs(job, options["dims"], values)
            outputs = original.call(inputs, options["dims"])
        except StageError:  # the data ends, or the original refuses it
            return
        if not not_finite(outputs).keys() - usual:
            yield original.case(inputs, outputs)
