"""Random weights that are the same on every run and that give outputs of order one.

Weights as PyTorch draws them are of little use for checking a conversion: the outputs of a deep network
with untouched batch-norm statistics can be as small as 1e-14, and a wrong graph then passes any absolute
tolerance. So every parameter is drawn anew from the source's seed, by the kind of its layer:

========================================  =====================================================
convolutions, linear and attention        uniform, variance 2 / fan-in (He)
recurrent layers                          uniform, variance 1 / fan-in
embeddings                                uniform, variance 1
batch norm                                weight in 0.5 … 1.5, bias in -0.25 … 0.25
layer, group and RMS norm, other vectors  weight in 0.9 … 1.1, bias in -0.1 … 0.1
PReLU                                     0.1 … 0.4
other biases                              -0.1 … 0.1
========================================  =====================================================

Batch-norm statistics follow from one forward in eval mode: each layer's running variance becomes the mean
square of what reaches it, times a drawn pattern of 0.5 … 1.5 over its channels, and its running mean a drawn
quarter of its root. The measured scale is rounded to a power of two, because sums differ in their last
bits between machines and numbers of threads and the weights must not.

A tensor's values depend on the seed and its name alone (SFC64 streams of a million values, filled in
parallel), never on torch's generator.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode

from buildsys.errors import StageError

_STREAM_LENGTH = 1 << 20
_NORMS = tuple(
    getattr(nn, name) for name in ("LayerNorm", "GroupNorm", "RMSNorm") if hasattr(nn, name)
)
_FILLS = frozenset(
    {
        getattr(torch.Tensor, f"{name}_")
        for name in ("uniform", "normal", "erfinv", "mul", "add", "clamp", "fill", "zero")
    }
    | {
        nn.init.uniform_,
        nn.init.normal_,
        nn.init.trunc_normal_,
        nn.init.kaiming_uniform_,
        nn.init.kaiming_normal_,
    }
    | {nn.init.constant_, nn.init.zeros_, nn.init.ones_}
)
Floats = npt.NDArray[np.float32]


class Span(NamedTuple):
    """The range that values are drawn from, uniformly."""

    low: float
    high: float


class _NoFills(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FILLS and _is_array(target := args[0] if args else kwargs["tensor"]):
            return target
        return func(*args, **(kwargs or {}))


def _is_array(value: Any) -> bool:
    return isinstance(value, nn.Parameter) and value.dim() > 0 and value.is_floating_point()


@contextmanager
def without_default_values() -> Iterator[None]:
    """Skip torch's own initialisation of parameters while a module is built.

    For modules whose parameters are all overwritten afterwards: drawing them twice is most of the time
    that it takes to build a large one. Until then they hold whatever the memory held.
    """
    with _NoFills():
        yield


def draw_parameters(module: nn.Module, seed: int) -> None:
    """Overwrite all parameters of ``module``; shared ones once, scalars never."""
    drawn: set[int] = set()
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            full_name = f"{path}.{name}" if path else name
            if nn.parameter.is_lazy(parameter):
                raise StageError(
                    f"{full_name} has no shape before the first forward, so it cannot be drawn from the seed",
                    "call the network once where it is made",
                )
            if id(parameter) in drawn or parameter.dim() == 0 or not parameter.is_floating_point():
                continue
            drawn.add(id(parameter))
            _fill(parameter, _span(layer, name, parameter), f"{seed}/{full_name}")


@contextmanager
def measuring_batch_norms(module: nn.Module, seed: int) -> Iterator[None]:
    """Set the running statistics of every batch norm of ``module`` from the first forward inside."""
    handles = [
        layer.register_forward_pre_hook(_Measure(f"{seed}/{path}"), with_kwargs=True)
        for path, layer in module.named_modules()
        if _has_statistics(layer)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Measure:
    """A hook that sets one layer's statistics, once."""

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.done = False

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if self.done:
            return
        self.done = True
        scale = _scale(args[0] if args else next(iter(kwargs.values())))
        spread = 0.25 * math.sqrt(scale)
        statistics = dict(layer.named_buffers(recurse=False))
        _fill(
            statistics["running_var"], Span(0.5 * scale, 1.5 * scale), f"{self.stream}.running_var"
        )
        _fill(statistics["running_mean"], Span(-spread, spread), f"{self.stream}.running_mean")


def _scale(values: torch.Tensor) -> float:
    """Return the mean square of ``values`` as a power of two; 1 where it says nothing."""
    mean_square = float(torch.linalg.vector_norm(values.float())) ** 2 / max(values.numel(), 1)
    if not math.isfinite(mean_square) or mean_square == 0.0:
        return 1.0
    return float(2.0 ** round(math.log2(mean_square)))


def has_batch_norms(module: nn.Module) -> bool:
    """Say whether ``module`` has statistics to measure."""
    return any(_has_statistics(layer) for layer in module.modules())


def _has_statistics(layer: nn.Module) -> bool:
    normalises = isinstance(layer, _NormBase) or type(layer).__name__ == "FrozenBatchNorm2d"
    return normalises and isinstance(getattr(layer, "running_var", None), torch.Tensor)


def _span(layer: nn.Module, name: str, parameter: torch.Tensor) -> Span:
    is_bias = name.rpartition(".")[2].startswith("bias") or name.endswith(("bias", "beta"))
    if isinstance(layer, _NormBase):
        return Span(-0.25, 0.25) if is_bias else Span(0.5, 1.5)
    if isinstance(layer, nn.PReLU):
        return Span(0.1, 0.4)
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return _symmetric(1.0)
    if parameter.dim() > 1 and not isinstance(layer, _NORMS):
        gain = 1.0 if isinstance(layer, nn.RNNBase | nn.RNNCellBase) else 2.0
        return _symmetric(gain / _fan_in(layer, parameter))
    return Span(-0.1, 0.1) if is_bias else Span(0.9, 1.1)


def _fan_in(layer: nn.Module, parameter: torch.Tensor) -> int:
    if isinstance(layer, nn.modules.conv._ConvTransposeNd):  # its weight is (in, out / groups, …)
        return max(parameter.numel() // parameter.shape[1] // layer.groups, 1)
    return max(parameter.numel() // max(parameter.shape[0], 1), 1)


def _symmetric(variance: float) -> Span:
    bound = math.sqrt(3.0 * variance)
    return Span(-bound, bound)


def _fill(tensor: torch.Tensor, span: Span, name: str) -> None:
    """Draw all of ``tensor`` from the stream called ``name``."""
    target = tensor.detach()
    in_place = (
        target.dtype == torch.float32 and target.is_contiguous() and target.device.type == "cpu"
    )
    values: Floats = (
        target.view(-1).numpy() if in_place else np.empty(target.numel(), dtype=np.float32)
    )
    _draw(values, span, name)
    if not in_place:
        target.copy_(torch.from_numpy(values).view(target.shape))


def _draw(values: Floats, span: Span, name: str) -> None:
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    starts = range(0, values.size, _STREAM_LENGTH)

    def draw_part(start: int) -> None:
        part = values[start : start + _STREAM_LENGTH]
        stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence([key, start])))
        stream.random(out=part, dtype=np.float32)
        part *= np.float32(span.high - span.low)
        part += np.float32(span.low)

    if len(starts) <= 1:
        for start in starts:
            draw_part(start)
        return
    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(draw_part, starts))
