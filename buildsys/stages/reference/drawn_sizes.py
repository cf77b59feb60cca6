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
