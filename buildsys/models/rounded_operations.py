"""The effect of rounding inside a network: its operations with another last bit.

At some values a network computes with nothing but rounding errors: the variance of a constant
picture, or a small signal added to a large bias. Changes of inputs and weights do not show that.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_OF_PYTORCH = ("aten", "prim", "prims", "profiler")
_EXACT = 256.0  # multiples of 1/256 are seldom rounded
_FEW = 0.01  # of the integers, which golden cases allow to differ by rounding
# runtimes compute them by way of 1 + x or exp(x), so that the last bit is one of 1
_NEXT_TO_ONE = frozenset((
    "celu", "celu_", "elu", "elu_", "expm1", "expm1_", "log1p", "log1p_",
    "selu", "selu_",
))  # fmt: skip


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Pass the operations of a network to ``result``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

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
        return self.result(func, args, kwargs or {})

    def result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute what the operation returns."""
        raise NotImplementedError


class OtherLastBits(OperationMode):  # type: ignore[no-untyped-call]
    """Change the last bit of rounded results at random, except those of views."""

    def result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute what the operation returns, with other last bits."""
        result = func(*args, **kwargs)
        least = 1.0 if operation_name(func) in _NEXT_TO_ONE else 0.0
        if func._schema.is_mutable:
            return tree_map(lambda value: _move(value, least, in_place=True), result)
        is_view = any(entry.alias_info for entry in func._schema.returns)
        return result if is_view else tree_map(lambda value: _move(value, least), result)


class OwnOperators(OperationMode):  # type: ignore[no-untyped-call]
    """Look for operators of other libraries than PyTorch."""

    is_used = False

    def result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute what the operation returns."""
        self.is_used |= func.namespace not in _OF_PYTORCH
        return func(*args, **kwargs)


def operation_name(func: Any) -> str:
    """Return the name of an operation without its namespace, if that is PyTorch's."""
    return str(func.overloadpacket).removeprefix("aten.")


def _move(value: Any, least: float, *, in_place: bool = False) -> Any:
    """Change last bits; numbers below ``least`` have its last bit."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    is_dense = value.layout == torch.strided and not value.is_nested
    if not is_dense or value.element_size() == 1:  # PyTorch computes nothing in 8 bits
        return value
    scaled = value * _EXACT
    step = torch.rand_like(value, dtype=torch.float32).sub_(0.5).mul_(2.0).to(value.dtype)
    unit = value.abs().clamp(min=least) * torch.finfo(value.dtype).eps
    moved = torch.where(scaled == scaled.round(), value, value + unit * step)
    return value.copy_(moved) if in_place else moved


def is_mostly_rounding(
    call: Callable[[], Mapping[str, torch.Tensor]],
    outputs: Mapping[str, torch.Tensor],
    limit: float,
) -> bool:
    """Check if other last bits in ``call`` move its ``outputs`` by more than ``limit``.

    It is relative to the largest magnitude of an output.
    """
    with OtherLastBits():
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
