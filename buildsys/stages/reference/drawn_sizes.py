"""Further sizes within the ranges of ``dims``, drawn from a seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from buildsys.manifest.shape_cases import DimRange, Dims

Condition = Callable[[int], bool]  # on a size
_SCANNED = 1024  # values of a range that a condition is evaluated for


def draw_sizes(
    spans: Mapping[str, DimRange], known: Iterable[Dims], seed: int, *, smallest_first: bool = False
) -> Iterator[Dims]:
    """Yield distinct sizes outside ``known``, most of them cheap.

    ``spans`` have ``min``, ``max`` and ``multiple_of``. The sizes end with the ranges.
    """
    seen = [dict(dims) for dims in known]
    key = int.from_bytes(hashlib.sha256(",".join(spans).encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    misses = 0
    while misses < 100:
        dims = {}
        for name, span in spans.items():
            allowed = _allowed(span)
            # the cube makes half of all sizes fall into the lowest eighth of the range
            position = 0 if smallest_first else int(len(allowed) * stream.random() ** 3)
            taken = {other[name] for other in seen}
            free = [n for n in allowed[position : position + 8] if n not in taken]
            dims[name] = free[0] if free else allowed[position]
        smallest_first = False
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
    wanted: dict[str, list[int]] = {}
    tested = list(conditions)
    for name, span in spans.items():
        sizes = [dims[name] for dims in known]
        allowed = _allowed(span)
        scanned = [*allowed[:_SCANNED], *allowed[_SCANNED :: max(len(allowed) // _SCANNED, 1)]]
        wanted[name] = []
        for holds in tested:
            met = {holds(size) for size in sizes}
            if len(met) > 1:
                continue
            new = next((size for size in scanned if holds(size) not in met), None)
            if new is not None:
                sizes.append(new)
                wanted[name].append(new)
    for index in range(max(map(len, wanted.values()), default=0)):
        yield {
            name: found[index] if index < len(found) else int(spans[name]["min"] or 0)
            for name, found in wanted.items()
        }


def _allowed(span: DimRange) -> range:
    low, high, step = int(span["min"] or 0), int(span["max"] or 0), int(span["multiple_of"] or 1)
    return range(low, high + 1, step)
