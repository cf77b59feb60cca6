"""Random weights: the same on every run, with outputs of order one.

PyTorch's own initial weights are of little use for checking a conversion: the outputs of a deep
network with initial batch-norm statistics can be as small as 1e-14, and a wrong graph then passes
any absolute tolerance. So every parameter is drawn from the source's seed, by kind of layer.

The rest follows from one forward in eval mode. A batch norm's statistics become those of its
input, times a drawn pattern. Where the output of a convolution or linear layer has a mean square
above 4, its weight is divided by the root: otherwise sums of branches grow from layer to layer, up
to scores that are all 1 after a sigmoid. Measured scales are rounded to a power of two: sums differ
in their last bits between machines, and the weights must not.

Before that, a tensor's values depend only on the seed and its name, never on torch's generator.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from buildsys.errors import StageError

_STREAM_LENGTH = 1 << 20
_LARGEST = 4.0  # mean square of a layer's output
_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
Span = tuple[float, float]  # of a uniform distribution


def draw_parameters(module: nn.Module, seed: int) -> None:
    """Overwrite all parameters of ``module``; shared ones once, scalars never."""
    drawn: set[int] = set()
    for path, layer in module.named_modules():
        for name, parameter in layer.named_parameters(recurse=False):
            full_name = f"{path}.{name}" if path else name
            if nn.parameter.is_lazy(parameter):
                raise StageError(
                    f"{full_name} has no shape before the first forward and cannot be drawn",
                    "call the network once after constructing it",
                )
            if id(parameter) in drawn or parameter.dim() == 0 or not parameter.is_floating_point():
                continue
            drawn.add(id(parameter))
            _fill(parameter, _span(layer, name, parameter), f"{seed}/{full_name}")


@contextmanager
def measuring_layers(module: nn.Module, seed: int) -> Iterator[None]:
    """Set batch-norm statistics, and scale large weights, by the next forward."""
    done: set[str] = set()

    def measure(
        path: str, layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if path in done:
            return
        done.add(path)
        mean_square = _mean_square(args[0] if args else next(iter(kwargs.values())))
        scale = 1.0
        if math.isfinite(mean_square) and mean_square > 0:
            scale = float(2.0 ** round(math.log2(mean_square)))
        spread = 0.25 * math.sqrt(scale)
        buffers = dict(layer.named_buffers(recurse=False))
        stream = f"{seed}/{path}"
        _fill(buffers["running_var"], (0.5 * scale, 1.5 * scale), f"{stream}.running_var")
        _fill(buffers["running_mean"], (-spread, spread), f"{stream}.running_mean")

    def scale_down(
        path: str,
        layer: nn.Linear | _ConvNd,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: torch.Tensor,
    ) -> Any:
        if path in done:
            return None
        done.add(path)
        mean_square = _mean_square(output)
        if not _LARGEST < mean_square < math.inf:
            return None
        layer.weight.mul_(2.0 ** -round(math.log2(mean_square) / 2))
        return layer.forward(*args, **kwargs)

    with ExitStack() as hooks:
        for path, layer in _batch_norms(module):
            hook = layer.register_forward_pre_hook(partial(measure, path), with_kwargs=True)
            hooks.callback(hook.remove)
        for path, layer in _scalable(module):
            hook = layer.register_forward_hook(partial(scale_down, path), with_kwargs=True)
            hooks.callback(hook.remove)
        yield


def has_measured_layers(module: nn.Module) -> bool:
    """Check for layers set by a forward."""
    return bool(_batch_norms(module) or _scalable(module))


def _batch_norms(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, _NormBase) or type(layer).__name__ == "FrozenBatchNorm2d"
        if isinstance(getattr(layer, "running_var", None), torch.Tensor)
    ]


def _scalable(module: nn.Module) -> list[tuple[str, nn.Linear | _ConvNd]]:
    """List the layers with weights neither shared nor computed."""
    users = Counter(
        id(weight) for layer in module.modules() for weight in layer.parameters(recurse=False)
    )
    return [
        (path, layer)
        for path, layer in module.named_modules()
        if isinstance(layer, nn.Linear | _ConvNd)
        if users[id(layer._parameters.get("weight"))] == 1
    ]


def _mean_square(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values.float())) ** 2 / max(values.numel(), 1)


def _span(layer: nn.Module, name: str, parameter: torch.Tensor) -> Span:
    is_bias = name.rpartition(".")[2].startswith("bias") or name.endswith(("bias", "beta"))
    if isinstance(layer, _NormBase):
        return (-0.25, 0.25) if is_bias else (0.5, 1.5)
    if isinstance(layer, nn.PReLU):
        return 0.1, 0.4
    variance = 0.0
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        variance = 1.0
    elif parameter.dim() > 1 and not isinstance(layer, _NORMS):
        # the weight of a transposed convolution is (in, out / groups, …)
        outputs = parameter.shape[0]
        if isinstance(layer, nn.modules.conv._ConvTransposeNd):
            outputs = parameter.shape[1] * layer.groups
        fan_in = max(parameter.numel() // max(outputs, 1), 1)
        gain = 1.0 if isinstance(layer, nn.RNNBase | nn.RNNCellBase) else 2.0
        variance = gain / fan_in
    if variance:
        bound = math.sqrt(3.0 * variance)
        return -bound, bound
    return (-0.1, 0.1) if is_bias else (0.9, 1.1)


def _fill(tensor: torch.Tensor, span: Span, name: str) -> None:
    """Draw all of ``tensor`` from the stream ``name``."""
    values = np.empty(tensor.numel(), dtype=np.float32)
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    for start in range(0, values.size, _STREAM_LENGTH):
        stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence([key, start])))
        stream.random(out=values[start : start + _STREAM_LENGTH], dtype=np.float32)
    values *= np.float32(span[1] - span[0])
    values += np.float32(span[0])
    tensor.detach().copy_(torch.from_numpy(values).view(tensor.shape))
