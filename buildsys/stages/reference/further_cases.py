"""Further golden cases, for ``validate`` and ``verify``: other sizes and other seeds.

The shape cases see four sizes and one set of values. A wrong branch between them would pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from buildsys.manifest.shape_cases import Dims, concrete_shape
from buildsys.stages.reference.sizes import draw_sizes, sizes_with, within_budget
from buildsys.workers.job import Job

if TYPE_CHECKING:
    from torch import nn

    from buildsys.models.resized_inputs import Resize

_DRAWN_SHARE = 0.25  # share of the shape cases' elements
_MOST_NUMBERS = 3  # sizes of large inputs that are numbers in the code
_LARGE = 4096  # elements of all inputs


class FurtherCase(NamedTuple):
    """One case with its sizes, and the origin of its values."""

    name: str
    dims: Dims
    values: Mapping[str, Any]  # golden_input's arguments: case, seed


def further_cases(
    job: Job, module: nn.Module | None, resizes: Sequence[Resize] = ()
) -> Iterator[FurtherCase]:
    """Yield the planned cases: drawn sizes, those that ``resizes`` round apart, other seeds.

    Large inputs have few: the smallest new size, other drawn sizes only up to a quarter of the
    shape cases, and the numbers in the code of ``module``.
    """
    options, seed = job.options.get("further"), job.options["source"]["seed"]
    if options is None:
        return

    def elements(dims: Dims) -> int:
        return input_elements(job, dims)

    planned, spans = list(job.options["cases"].values()), options["spans"]
    is_large = elements(options["dims"]) > _LARGE
    sizes: list[Dims] = []
    if options["sizes"]:
        total = sum(map(elements, planned))
        budget = total * _DRAWN_SHARE
        drawn = draw_sizes(spans, planned, seed, smallest_first=is_large)
        for dims in sorted(islice(drawn, options["drawn"]), key=elements):
            budget -= elements(dims)
            if budget >= 0 or not sizes or elements(dims) <= _LARGE:
                sizes.append(dims)
        if module is not None:
            from buildsys.models.code_numbers import code_numbers
            from buildsys.models.resized_inputs import rounded_apart

            apart = rounded_apart(resizes, spans, job.options["cases"])
            sizes += sizes_with(apart, spans, [*planned, *sizes])
            if is_large:
                numbers = [(name, n) for n in code_numbers(module, job.project) for name in spans]
                new = sizes_with(numbers, spans, [*planned, *sizes])
                sizes += within_budget(new, elements, int(total * _DRAWN_SHARE), _MOST_NUMBERS)
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
