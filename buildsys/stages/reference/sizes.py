"""Sizes of dynamic dimensions for further cases: drawn, suggested, or all of a small input."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

import numpy as np

from buildsys.manifest.shape_cases import DimRange, Dims, allowed_sizes

Spans = Mapping[str, DimRange]  # with ``min``, ``max`` and ``multiple_of``
_MOST_OF_ONE = 128  # sizes of one dimension
_MOST_DRAWN = 32


def draw_sizes(
    spans: Spans, tested: Iterable[Dims], seed: int, *, smallest_first: bool = False
) -> Iterator[Dims]:
    """Yield distinct sizes outside ``tested``, most of them cheap.

    The sizes end with the ranges. The first dimension has the largest of the first sizes, since
    shape cases seldom have it: a network may treat portrait and landscape images differently.
    """
    seen = [dict(dims) for dims in tested]
    key = int.from_bytes(hashlib.sha256(",".join(spans).encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    misses, rising = 0, [*spans][::-1]
    while misses < 100:
        dims: Dims = {}
        for name, drawn in zip(rising, sorted(stream.random(len(spans))), strict=True):
            allowed = allowed_sizes(spans[name])
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


def sizes_with(
    suggested: Iterable[tuple[str, int]], spans: Spans, tested: Sequence[Dims]
) -> Iterator[Dims]:
    """Yield untested sizes with one suggested size each, the others at their minimum."""
    seen = {name: {dims[name] for dims in tested} for name in spans}
    for name, size in suggested:
        if size in allowed_sizes(spans[name]) and size not in seen[name]:
            seen[name].add(size)
            yield {**_ends(spans, "min"), name: size}


def all_sizes(spans: Spans, tested: Iterable[Dims], seed: int) -> list[Dims]:
    """List all sizes of each dimension, equal ones of each two, and drawn ones, each once."""
    low, high = _ends(spans, "min"), _ends(spans, "max")
    sizes = [{**low, name: size} for name, span in spans.items() for size in _many(span)]
    for first, second in combinations(spans, 2):
        both = [size for size in _many(spans[first]) if size in allowed_sizes(spans[second])]
        sizes += [{**low, first: size, second: size} for size in both]
    sizes += [{**high, name: size} for name, span in spans.items() for size in _many(span)]
    sizes += islice(draw_sizes(spans, [*tested], seed), _MOST_DRAWN)
    known = [*tested]
    return [dims for place, dims in enumerate(sizes) if dims not in [*known, *sizes[:place]]]


def within_budget(
    sizes: Iterable[Dims], cost: Callable[[Dims], float], budget: float, most: int
) -> Iterator[Dims]:
    """Yield at most ``most`` sizes, as long as their costs fit in ``budget``."""
    for dims in sizes:
        budget -= cost(dims)
        most -= 1
        if budget < 0 or most < 0:
            return
        yield dims


def _ends(spans: Spans, end: str) -> Dims:
    return {name: (allowed_sizes(span)[0 if end == "min" else -1]) for name, span in spans.items()}


def _many(span: DimRange) -> list[int]:
    """List the sizes of a range: the small ones of a wide range, powers of 2, and a few others."""
    allowed = allowed_sizes(span)
    if len(allowed) <= _MOST_OF_ONE:
        return [*allowed]
    half = _MOST_OF_ONE // 2
    powers = [2**power + step for power in range(31) for step in (0, 1)]
    chosen = {*allowed[:half], *allowed[:: len(allowed) // half], allowed[-1]}
    return sorted(chosen.union(size for size in powers if size in allowed))
