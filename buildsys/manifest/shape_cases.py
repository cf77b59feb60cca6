"""Shape cases: dimension values for min, opt, max and odd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

DimRange = Mapping[str, int | None]  # min, opt, max, odd, multiple_of as in the manifest
Dims = dict[str, int]


def case_values(dims: Mapping[str, DimRange]) -> dict[str, Dims]:
    """Choose the dimension values of all four cases."""
    cases = {
        case: {name: _value(span, case) for name, span in dims.items()}
        for case in ("min", "opt", "max")
    }
    odd: Dims = {}
    for name, span in dims.items():
        declared = span.get("odd")
        odd[name] = _choose_odd(span, set(odd.values())) if declared is None else declared
    return {**cases, "odd": odd}


def representatives(every: Mapping[str, Dims]) -> dict[str, str]:
    """Return case -> representative case with the same values.

    All cases of a model without dynamic dimensions are represented by ``opt``.
    """
    preferred = dict.fromkeys(("opt", "min", "max", "odd", *every))
    return {case: next(name for name in preferred if every[name] == every[case]) for case in every}


def example_dims(dims: Mapping[str, DimRange]) -> Dims:
    """Choose the dimension values for tracing an export.

    As small as the ranges allow, but at least 2 (a size of 1 broadcasts, and a tracer may bake that
    in) and different from each other (a tracer may take equal sizes for one dimension). They depend
    on ``min`` alone if possible, so a changed ``opt`` or ``max`` does not affect the export.
    """
    values: Dims = {}
    for name, span in dims.items():
        candidates = [value for value in _multiples(span) if value >= 2]
        unused = (value for value in candidates if value not in values.values())
        values[name] = next(unused, candidates[0] if candidates else _value(span, "max"))
    return values


def concrete_shape(shape: Iterable[int | str], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Replace every named dimension of a shape by its value."""
    return tuple(dims[size] if isinstance(size, str) else size for size in shape)


def dims_of_shapes(
    declared: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Sequence[int]]
) -> Dims:
    """Read the sizes of the named dimensions from the shapes of all inputs."""
    return {
        name: size
        for tensor, shape in declared.items()
        for name, size in zip(shape, shapes[tensor], strict=True)
        if isinstance(name, str)
    }


def format_dims(dims: Mapping[str, int]) -> str:
    """Format sizes as ``batch 8, length 128``."""
    return ", ".join(f"{name} {size}" for name, size in dims.items())


def format_case(case: str, dims: Mapping[str, int]) -> str:
    """Format a case with its sizes: ``odd (batch 3)``. ``batch=12`` has them already."""
    return f"{case} ({format_dims(dims)})" if dims and "=" not in case else case


def _choose_odd(span: DimRange, taken: set[int]) -> int:
    usual = {_value(span, "min"), _value(span, "opt"), _value(span, "max")}
    step = _value(span, "multiple_of")
    inside = [value for value in _multiples(span) if value not in usual]
    odd = [value for value in inside if (value // step) % 2]
    free = [value for value in (*odd, *inside) if value not in taken]
    return next(iter((*free, *inside)), _value(span, "opt"))


def _multiples(span: DimRange, limit: int = 64) -> Iterator[int]:
    """Yield the first ``limit`` values of a range in ascending order."""
    step, low, high = _value(span, "multiple_of"), _value(span, "min"), _value(span, "max")
    yield from range(low, min(high, low + step * limit) + 1, step)


def _value(span: DimRange, field: str) -> int:
    value = span.get(field)
    return 1 if value is None else value
