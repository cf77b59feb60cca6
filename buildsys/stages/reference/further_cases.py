"""Further golden cases, for ``validate`` and ``verify``: other sizes, seeds and special values.

The shape cases see four sizes and one set of values. A wrong branch between them would pass.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain, islice
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import Dims, concrete_shape, format_case
from buildsys.manifest.value_ranges import VALUE_CASES
from buildsys.models.value_cases import last_rows, value_cases
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.golden_check import uncompared_case
from buildsys.stages.reference.original import Original, Tensors, golden_inputs, not_finite
from buildsys.stages.reference.sizes import all_sizes, draw_sizes, sizes_with, within_budget
from buildsys.system.processes import raised_after
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
_LEAST_LIMIT_S, _LONGER = 20.0, 10  # of a call with special values; times an ordinary call
_NOT_FINITE = {"nan", "inf"}
_USUAL_VALUES = {"zeros", "ones", "small", "large", "huge"}  # few networks refuse them
_FAR_INTEGERS = {"negative-integers", "hundreds", "wide-integers", "last-rows"}
_FAR_VALUES = _FAR_INTEGERS | _NOT_FINITE | {"large", "huge"}


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
                numbers = [(name, n) for n in code_numbers(original.module) for name in spans]
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


def special_cases(
    job: Job, original: Original, usual: Collection[tuple[str, str]], doubts: list[Doubt]
) -> Iterator[tuple[str, Dims, Case]]:
    """Yield the cases with special values that the network answers with finite numbers.

    ``usual`` are outputs with NaN or infinite values in all cases.
    Values that are not finite, and multiples, say nothing about networks of narrow floats; nor
    does the place of NaN among others, as ArgMax returns it.
    """
    names = set(job.options["further"]["values"]).intersection(VALUE_CASES)
    if job.options["source"].get("device", "cpu") != "cpu":  # an index out of range ends CUDA
        names -= _FAR_INTEGERS
    is_narrow = original.float_type in ("float16", "bfloat16")
    if is_narrow:
        names -= _NOT_FINITE | {"small", "large", "huge"}
    if original.float_type == "int8":  # NaN then becomes any integer
        names -= {"nan"}
    if not names:
        return
    dims, seed = value_dims(job), job.options["source"]["seed"]

    def answer(inputs: Tensors) -> tuple[Tensors, str]:
        try:
            # infinity makes some loops endless
            with raised_after(limit_s, slow) if original.module is not None else nullcontext():
                outputs = original.call(inputs, dims)
        except StageError as error:
            return {}, error.problem
        return ({} if not_finite(outputs).keys() - usual else outputs), ""

    inputs, data = golden_inputs(job, dims, {"case": "min", "seed": seed}), job.options["data"]
    start = time.monotonic()
    if original.has_own_operators(inputs):  # which need not survive values out of range
        names -= _FAR_VALUES
    limit_s = _LEAST_LIMIT_S + _LONGER * (time.monotonic() - start)
    slow = StageError(f"forward takes more than {limit_s:.0f} s")
    cases = value_cases(inputs, data, names)
    if "last-rows" in names and original.table_rows:
        last = last_rows(inputs, data, original.table_rows, lambda feeds: bool(answer(feeds)[0]))
        cases = chain(cases, [("last-rows", last)] if last else ())
    for name, feeds in cases:
        outputs, problem = answer(feeds)
        if problem and name in _USUAL_VALUES:
            doubts.append(uncompared_case(name, format_case(name, dims), problem))
        is_open = usual or any("int" in tensor.dtype for tensor in outputs.values())
        if not outputs or (is_open and name in _NOT_FINITE):
            continue
        if not is_narrow and original.is_rounding(feeds):
            case_text = format_case(name, dims)
            doubts.append(uncompared_case(name, case_text, "its outputs are mostly rounding"))
        else:
            yield name, dims, original.case(feeds, outputs)
