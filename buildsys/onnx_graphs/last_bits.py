"""Changes of the last bits of numbers, as large as those by rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from buildsys.onnx_graphs.tensors import Array, Tensor

BITS = {
    "float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64,
}  # fmt: skip
_EXACT = 256.0  # multiples of 1/256 are not rounded numbers but sizes, scales and thresholds


def nudged_tensors(
    tensors: Mapping[str, Tensor], draw: int | np.random.Generator
) -> dict[str, Tensor]:
    """Return the tensors with the last bits of floats changed."""
    rng = np.random.default_rng(draw)
    return {
        name: Tensor(_nudged(tensor, rng), tensor.dtype) if tensor.dtype in BITS else tensor
        for name, tensor in tensors.items()
    }


def _nudged(tensor: Tensor, rng: np.random.Generator) -> Array:
    bits = tensor.array.view(BITS[tensor.dtype])
    return nudge(bits, tensor.values().astype(np.float64), rng).view(tensor.array.dtype)


def nudge(bits: Array, values: Array, rng: np.random.Generator) -> Array:
    """Return the bits of the next larger or smaller magnitudes."""
    is_rounded = np.isfinite(values) & (values * _EXACT != np.round(values * _EXACT))
    step = rng.integers(0, 2, bits.shape, dtype=np.int8).astype(bool)
    one = bits.dtype.type(1)
    return np.where(is_rounded, np.where(step, bits + one, bits - one), bits)
