"""Further golden cases, for ``validate`` only: drawn sizes, other seeds, extreme values.

The shape cases see four sizes and one set of values. A wrong branch between them, or above the
largest golden value, would pass.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf, nan, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from buildsys.manifest.shape_cases import DimRange, Dims, concrete_shape
from buildsys.workers.job import Job

if TYPE_CHECKING:
    from torch import nn

Condition = Callable[[int], bool]  # on a size
_SCANNED = 1024  # values of a range that a condition is evaluated for
_DRAWN_SHARE = 0.25  # share of the shape cases' elements
_LARGE = 4096  # elements of all inputs
_NOT_FINITE = {"nan-1": (nan,), "inf-1": (inf, -inf)}
_ZERO = (0.0,)  # random floats never are
_NAN_FUNCTIONS = re.compile(rb"\b(is(nan|inf|finite|posinf|neginf)|nan(_to_num|sum|mean|median))\b")


@dataclass(frozen=True)
class FurtherCase:
    """One case with its sizes, and the origin of its values."""

    name: str
    dims: Dims
    values: Mapping[str, Any]  # golden_input's arguments: case, seed, extreme, special
    fallback: FurtherCase | None = None  # if this case cannot be compared
    is_optional: bool = False  # the network need not return finite numbers


def further_cases(job: Job, module: nn.Module | None) -> Iterator[FurtherCase]:
    """Yield the planned cases: drawn sizes, sizes suggested by ``module``, other values.

    Large inputs have few: the smallest new size with ordinary and with extreme values, and other
    drawn sizes only up to a quarter of the shape cases. Networks that test for NaN or infinity get
    such values as well.
    """
    options, seed = job.options.get("further"), job.options["source"]["seed"]
    if options is None:
        return

    def elements(dims: Dims) -> int:
        shapes = (tensor["shape"] for tensor in job.options["inputs"].values())
        return sum(prod(concrete_shape(shape, dims)) for shape in shapes)

    planned, spans = list(job.options["cases"].values()), options["spans"]
    is_large = elements(options["dims"]) > _LARGE
    sizes: list[Dims] = []
    if options["sizes"]:
        budget = sum(map(elements, planned)) * _DRAWN_SHARE
        drawn = draw_sizes(spans, planned, seed, smallest_first=is_large)
        for dims in sorted(islice(drawn, options["drawn"]), key=elements):
            budget -= elements(dims)
            if budget >= 0 or not sizes or elements(dims) <= _LARGE:
                sizes.append(dims)
        if module is not None:
            from buildsys.stages.reference.size_conditions import size_conditions  # needs torch

            conditions = size_conditions(module, job.project)
            sizes += suggested_sizes(spans, [*planned, *sizes], conditions)
    cases = [
        FurtherCase(name, dims, {"case": name, "seed": seed})
        for name, dims in zip(options["sizes"], sizes, strict=False)
    ]
    for name in options["values"]:
        if name in _NOT_FINITE:
            continue
        kind, _, number = name.partition("-")
        if is_large and (number == "2" or (kind == "seed" and sizes)):
            continue
        values = {"case": "min", "seed": seed + int(number)}  # callables know the case
        if kind == "extremes":
            values |= {"extreme": 1 if number == "1" else -1, "seed": seed}
        case = FurtherCase(name, options["dims"], values)
        if kind == "extremes":
            dims = sizes[0] if is_large and sizes else options["dims"]
            case = FurtherCase(name, dims, {**values, "special": _ZERO}, fallback=case)
        cases.append(case)
    yield from cases
    special = [name for name in options["values"] if name in _NOT_FINITE]
    if special and module is not None and _handles_nan(module):
        small = [dims for dims in planned if elements(dims) <= _LARGE]
        dims = max(small, key=elements, default=options["dims"])
        for name in special:
            values = {"case": "min", "seed": seed, "special": _NOT_FINITE[name]}
            yield FurtherCase(name, dims, values, is_optional=True)


def _handles_nan(network: nn.Module) -> bool:
    """Check if the files of a network's layers name a function for NaN or infinity."""
    modules = {type(layer).__module__ for layer in network.modules()}
    names = (getattr(sys.modules.get(name), "__file__", None) for name in sorted(modules))
    files = (Path(name) for name in names if name and "torch/nn/" not in name)
    return any(_NAN_FUNCTIONS.search(file.read_bytes()) for file in files if file.is_file())


def draw_sizes(
    spans: Mapping[str, DimRange], known: Iterable[Dims], seed: int, *, smallest_first: bool = False
) -> Iterator[Dims]:
    """Yield distinct sizes outside ``known``, most of them cheap.

    ``spans`` have ``min``, ``max`` and ``multiple_of``. The sizes end with the ranges. The first
    dimension has the largest of the first sizes, since shape cases seldom have it: a network may
    treat portrait and landscape images differently.
    """
    seen = [dict(dims) for dims in known]
    key = int.from_bytes(hashlib.sha256(",".join(spans).encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    misses, rising = 0, [*spans][::-1]
    while misses < 100:
        dims: Dims = {}
        for name, drawn in zip(rising, sorted(stream.random(len(spans))), strict=True):
            allowed = _allowed(spans[name])
            # the cube makes half of all sizes fall into the lowest eighth of the range
            position = 0 if smallest_first else int(len(allowed) * drawn**3)
            taken = {other[name] for other in seen}
            free = [n for n in allowed[position : position + 8] if n not in taken]
            unlike = [n for n in free if n not in dims.values()]
            dims[name] = next(iter((*unlike, *free, allowed[position])))
        smallest_first, rising = False, [str(name) for name in stream.permutation(rising)]
        dims = {name: dims[name] for name in spans}
        if dims in seen:
            misses += 1
            continue
        misses = 0
        seen.append(dims)
        yield dims


def suggested_sizes(
    spans: Mapping[str, DimRange], known: Sequence[Dims], conditions: Iterable[Condition]
) -> Iterator[Dims]:
    """Yield the smallest sizes on the untested side of conditions."""
    new_sizes: dict[str, list[int]] = {}
    tested = list(conditions)
    for name, span in spans.items():
        sizes = [dims[name] for dims in known]
        allowed = _allowed(span)
        scanned = [*allowed[:_SCANNED], *allowed[_SCANNED :: max(len(allowed) // _SCANNED, 1)]]
        new_sizes[name] = []
        for holds in tested:
            met = {holds(size) for size in sizes}
            if len(met) > 1:
                continue
            new = next((size for size in scanned if holds(size) not in met), None)
            if new is not None:
                sizes.append(new)
                new_sizes[name].append(new)
    for index in range(max(map(len, new_sizes.values()), default=0)):
        yield {
            name: column[index] if index < len(column) else int(spans[name]["min"] or 0)
            for name, column in new_sizes.items()
        }


def _allowed(span: DimRange) -> range:
    low, high, step = int(span["min"] or 0), int(span["max"] or 0), int(span["multiple_of"] or 1)
    return range(low, high + 1, step)
