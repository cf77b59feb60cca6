"""The effect of rounding inside a network: its operations with another last bit.

At some values a network computes with nothing but rounding errors: the variance of a constant
picture, or a small signal added to a large bias. Changes of inputs and weights do not show that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_OF_PYTORCH = ("aten", "prim", "prims", "profiler")
_EXACT = 256.0  # multiples of 1/256 are seldom rounded
_FEW = 0.01  # of the integers, which golden cases allow to differ by rounding


class OtherLastBits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Change the last bit of rounded results at random, except those of views."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import torch._dynamo, which takes seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        result = func(*args, **(kwargs or {}))
        is_view = any(entry.alias_info for entry in func._schema.returns)  # or in place
        return result if is_view else tree_map(_moved, result)


class OwnOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collect the operators of other libraries than PyTorch, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        if func.namespace not in _OF_PYTORCH:
            self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def _moved(value: Any) -> Any:
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    if not is_float or value.element_size() == 1:  # PyTorch computes nothing in 8 bits
        return value
    scaled = value * _EXACT
    step = torch.rand_like(value, dtype=torch.float32).sub_(0.5).mul_(2.0)
    moved = value + value * step.to(value.dtype) * torch.finfo(value.dtype).eps
    return torch.where(scaled == scaled.round(), value, moved)


def is_mostly_rounding(
    call: Callable[[], Mapping[str, torch.Tensor]],
    outputs: Mapping[str, torch.Tensor],
    limit: float,
) -> bool:
    """Check if other last bits in ``call`` move its ``outputs`` by more than ``limit``.

    It is relative to the largest magnitude of an output.
    """
    with OtherLastBits():  # type: ignore[no-untyped-call]
        moved = call()
    for name, output in outputs.items():
        if output.is_floating_point() or output.is_complex():
            x, y = (side.to(torch.complex128) for side in (moved[name], output))
            atol = limit * float(y[y.isfinite()].abs().max()) if y.isfinite().any() else 0.0
            if not torch.allclose(x, y, rtol=0.0, atol=atol, equal_nan=True):
                return True
        elif output.numel() and (moved[name] != output).double().mean() > _FEW:
            return True
    return False
