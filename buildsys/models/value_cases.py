"""Special values of inputs, for which a wrong graph may differ from its network.

Random values are of one magnitude, never 0, never all false, and integers are small. A branch, a
limit or another formula shows only at other values. One table has them for all comparisons. Values
stay within the range that an input's data declares.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from buildsys.manifest.value_ranges import VALUE_CASES, allowed_range
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of

Tensors = Mapping[str, Tensor]
Data = Mapping[str, Any] | None  # the manifest's ``data`` of one input
_MULTIPLES = {"small": 1e-5, "large": 100.0, "huge": 1e4}
_WIDE = ("float32", "float64", "complex64", "complex128")  # types with room for multiples
_WITH_NAN = ("float16", "bfloat16", "float32", "float64")
_SPECIAL = {"nan": (np.nan,), "inf": (np.inf, -np.inf)}
_EXTREME_FACTOR, _LEAST_EXTREME = 4.0, 6.0  # in standard deviations of normal values
_INTEGERS: Mapping[str, Callable[[Array], Array]] = {
    "zero-integers": np.zeros_like,
    "one-integers": np.ones_like,
    "negative-integers": lambda values: -1 - values,
    "hundreds": lambda values: 100 * values + 99,  # whose products are odd
    "wide-integers": lambda values: values + 2**31 + 5,
}


def value_cases(
    inputs: Tensors, data: Mapping[str, Data], names: Collection[str] = VALUE_CASES
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield the cases of ``names`` that change ``inputs``, and their values."""
    seen = {_content(inputs)}
    for name in VALUE_CASES:
        if name in names and name != "last-rows":
            case = {
                tensor_name: _special(name, tensor, data.get(tensor_name))
                for tensor_name, tensor in inputs.items()
            }
            if (content := _content(case)) not in seen:
                seen.add(content)
                yield name, case


def last_rows(
    inputs: Tensors,
    data: Mapping[str, Data],
    rows: Collection[int],
    accepts: Callable[[Tensors], bool],
) -> dict[str, Tensor] | None:
    """Move indices to the last row of their tables, or None.

    ``rows`` are sizes of tables; the largest that the network ``accepts`` is the input's.
    """
    changed = dict(inputs)
    for name, tensor in inputs.items():
        bounds, values = allowed_range(tensor.dtype, data.get(name)), tensor.values()
        if bounds is None or values.dtype.kind not in "iu" or not values.size:
            continue
        for size in sorted(rows, reverse=True):
            last = np.maximum(size - 1 - (values.astype(np.int64) - int(values.min())), 0)
            if size - 1 <= bounds[1] and last.min() >= bounds[0]:
                moved = {**inputs, name: tensor_of(last, tensor.dtype)}
                if accepts(moved):
                    changed[name] = moved[name]
                    break
    return changed if _content(changed) != _content(inputs) else None


def _content(tensors: Tensors) -> tuple[bytes, ...]:
    return tuple(tensor.array.tobytes() for tensor in tensors.values())


def _special(name: str, tensor: Tensor, data: Data) -> Tensor:
    """Return the values of one input in a case, or unchanged."""
    bounds = allowed_range(tensor.dtype, data)
    if bounds is None or tensor.dtype == "string":
        return tensor
    low, high = bounds
    if tensor.values().dtype.kind in "iub":
        changed = _special_integers(name, tensor.values().astype(np.int64), data, low, high)
    else:
        changed = _special_floats(name, tensor, data, low, high)
    is_inside = np.isinf(high) or bool(((changed >= low) & (changed <= high)).all())
    return tensor_of(changed, tensor.dtype) if is_inside else tensor


def _special_integers(name: str, values: Array, data: Data, low: float, high: float) -> Array:
    if not name.startswith("extremes"):
        return _INTEGERS[name](values) if name in _INTEGERS else values
    if not data:  # the range of the type says nothing about indices
        low, high = values.min(initial=0), values.max(initial=0)
    return _ends(values, low, high, is_first=name == "extremes-1")


def _special_floats(name: str, tensor: Tensor, data: Data, low: float, high: float) -> Array:
    values = np.array(tensor.values())
    flat = values.reshape(-1)
    if name == "zeros":
        return np.zeros_like(values)
    if name == "ones":
        return np.ones_like(values)
    if name in _MULTIPLES and tensor.dtype in _WIDE:
        return np.asarray(values * _MULTIPLES[name])
    if name in _SPECIAL and tensor.dtype in _WITH_NAN and values.size:
        for index, value in enumerate(_SPECIAL[name]):
            flat[(1 + 2 * index) % values.size :: 9] = value
        return values
    if not name.startswith("extremes") or not values.size or values.dtype.kind == "c":
        return values
    if np.isfinite(high):
        return _ends(values, low, high, is_first=name == "extremes-1")
    mean, std = (data["mean"], data["std"]) if data else (0.0, 1.0)
    steps = (values - mean) / (std or 1.0)  # a small input has no large value by chance
    factor = max(_EXTREME_FACTOR, _LEAST_EXTREME / max(float(np.abs(steps).max()), 1e-6))
    extreme = np.asarray(mean + std * steps * (factor if name == "extremes-1" else -factor))
    if name == "extremes-1":
        extreme.reshape(-1)[4::9] = 0.0  # random floats never are
    return extreme


def _ends(values: Array, low: float, high: float, *, is_first: bool) -> Array:
    return np.where((values > np.median(values)) == is_first, high, low)
