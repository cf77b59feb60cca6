"""Right alternatives of a network's integer outputs.

A rounding error of a score or pixel value becomes a whole step where the network rounds, compares
with a threshold or takes the index of a maximum. The operators that decide such an output are
recorded, and repeated with values as far away as rounding moves them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from buildsys.errors import StageError
from buildsys.models.rounded_operations import OperationMode, OtherLastBits, operation_name
from buildsys.onnx_graphs.tensors import NATIVE_DTYPES, Array, Tensor

# of a sample's largest magnitude; sums in another order moved 21 networks by at most 2.1e-6
_ROUNDING, _UNMEASURED = 4e-6, 2e-5
_ROUNDINGS = 8  # steps of a 16-bit type
_FACTOR = 4.0  # of another order of operations, compared with other last bits
_MOST_NOISE = 1e-3  # of the largest magnitude
_MOST = 1 << 20  # alternatives of an output
_MOST_MOVED = 1 << 22  # elements of a network's results
_MOST_COMPARED = 1 << 28  # pairs of scores
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_ANY = -(2**63), 2**63 - 1
_INDICES = {  # place of the axis among the arguments, of the indices among the results
    "argmax": (1, 0), "argmin": (1, 0), "kthvalue": (2, 1), "max": (1, 1), "median": (1, 1),
    "min": (1, 1), "sort": (1, 1), "topk": (2, 1),
}  # fmt: skip
_VIEWS = frozenset((
    "alias", "clone", "detach", "expand", "permute", "reshape", "select", "slice", "squeeze", "t",
    "transpose", "unsqueeze", "view", "_unsafe_view",
))  # fmt: skip
# they rise or fall with their first argument, element by element
_MONOTONE = frozenset((
    "_to_copy", "add", "bucketize", "ceil", "clamp", "div", "floor", "floor_divide", "ge", "gt",
    "hardtanh", "le", "logical_not", "lt", "mul", "neg", "round", "rsub", "sign", "sub", "trunc",
))  # fmt: skip
Tensors = Mapping[str, torch.Tensor]
Alternatives = dict[str, Array]


class _Step(NamedTuple):
    """A call of an operator with the number of the result."""

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    number: int

    @property
    def name(self) -> str:
        return operation_name(self.function)

    @property
    def is_index(self) -> bool:
        """Check for indices of maxima and the like."""
        return _INDICES.get(self.name, (0, -1))[1] == self.number

    @property
    def is_of_scalars(self) -> bool:
        """Check that the other arguments are numbers."""
        others = (*self.args[1:], *self.kwargs.values())
        return not any(isinstance(value, torch.Tensor) for value in others)

    def repeat(self, value: torch.Tensor) -> torch.Tensor:
        """Call the operator with another first argument."""
        result = self.function(value, *self.args[1:], **self.kwargs)
        tensor: torch.Tensor = result if isinstance(result, torch.Tensor) else result[self.number]
        return tensor


class _Recorder(OperationMode):  # type: ignore[no-untyped-call]
    """Keep the steps to integer results."""

    def __init__(self) -> None:
        super().__init__()
        # by the identity of the result, which is kept
        self._steps: dict[int, tuple[torch.Tensor, _Step]] = {}
        self.elements = 0  # of all results

    def result(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Compute what the operation returns."""
        result = func(*args, **kwargs)
        for number, tensor in enumerate(result if isinstance(result, (tuple, list)) else [result]):
            step = _Step(func, args, kwargs, number)
            if not isinstance(tensor, torch.Tensor) or not args or tensor is args[0]:
                continue
            self.elements += tensor.numel()
            if not tensor.is_floating_point() or (step.name in _MONOTONE and step.is_of_scalars):
                self._steps[id(tensor)] = tensor, step
        return result

    def origin(self, output: torch.Tensor) -> "_Origin":
        """Follow ``output`` back to a result that is not recorded."""
        steps: list[_Step] = []
        while id(output) in self._steps:
            steps.insert(0, self._steps[id(output)][1])
            output = steps[0].args[0]
        return _Origin(output, steps)


class _Origin(NamedTuple):
    """A value, and the steps from it to an output."""

    value: torch.Tensor
    steps: Sequence[_Step]

    def repeat(self) -> torch.Tensor:
        """Compute the output again."""
        result = self.value
        for step in self.steps:
            result = step.repeat(result)
        return result


def find_alternatives(run: Callable[[], Tensors], outputs: Mapping[str, Tensor]) -> Alternatives:
    """Map integer outputs to rows of place, least and largest value, and group.

    ``run`` computes ``outputs`` again; a place counts the elements of an output. Indices have one
    row for each, as ``Case`` says.
    """
    integers = {
        name: tensor.array
        for name, tensor in outputs.items()
        if tensor.dtype in NATIVE_DTYPES and tensor.array.dtype.kind in "biu"
    }
    if not integers:
        return {}
    recorder, rounded, alternatives = _Recorder(), _Recorder(), Alternatives()
    moved: Tensors = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            with recorder:
                again = run()
            if recorder.elements <= _MOST_MOVED:  # it takes ten times as long
                with OtherLastBits(), rounded:
                    moved = run()
        except StageError:  # some modules cannot be recorded
            return {}
        for name, array in integers.items():
            origin = recorder.origin(again[name])
            # operations in place are not recorded
            if origin.steps and np.array_equal(origin.repeat().cpu().numpy(), array):
                rows = _alternatives(origin, rounded.origin(moved[name]).value if moved else None)
                if rows is not None and 0 < len(rows) <= _MOST:
                    alternatives[name] = rows
    return alternatives


def _alternatives(origin: _Origin, moved: torch.Tensor | None) -> Array | None:
    value, steps = origin
    number = next((n for n, step in enumerate(steps) if step.is_index), len(steps))
    names = {step.name for step in steps[:number]}
    if not isinstance(value, torch.Tensor) or not names <= _VIEWS | _MONOTONE:
        return None
    is_float, is_index = value.dtype in _FLOATS, number < len(steps)
    if is_float:
        least, most = _interval(value, _margin(value, moved), steps[:number])
    elif is_index:
        least = most = steps[number].args[0]
    else:
        return None
    if is_index:
        views = [step for step in steps[number + 1 :] if step.name != "_to_copy"]
        are_views = all(step.name in _VIEWS for step in views)
        return _ties(steps[number], views, least, most) if are_views else None
    undefined = value.isnan()  # no runtime defines an integer of NaN
    for step in steps:
        undefined = step.repeat(undefined) if step.name in _VIEWS else undefined
    least, most = least.reshape(-1).long(), most.reshape(-1).long()
    least[undefined.reshape(-1)], most[undefined.reshape(-1)] = _ANY
    (places,) = torch.where(least < most)
    groups = torch.full_like(places, -1)
    return np.asarray(torch.stack([places, least[places], most[places], groups], dim=1).cpu())


def _interval(
    value: torch.Tensor, margin: torch.Tensor, steps: Sequence[_Step]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Repeat steps with smaller and larger values; find the ends of their results."""
    moved = [value + (change * margin).to(value.dtype) for change in (-1.0, 0.0, 1.0)]
    least, most = torch.stack([_Origin(side, steps).repeat() for side in moved]).aminmax(dim=0)
    return least, most


def _ties(
    first: _Step, views: Sequence[_Step], least: torch.Tensor, most: torch.Tensor
) -> Array | None:
    """List the indices of nearly equal scores between ``least`` and ``most``."""
    scores, indices, place = first.args[0], first.repeat(first.args[0]), _INDICES[first.name][0]
    default = None if first.name.startswith("arg") else -1
    axis = first.kwargs.get("dim", first.args[place] if len(first.args) > place else default)

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        """Move the axis of the scores to the end."""
        if axis is None or not scores.ndim:
            return tensor.reshape(1, -1)
        whole = tensor if tensor.ndim == scores.ndim else tensor.unsqueeze(axis)
        return whole.movedim(axis, -1).flatten(end_dim=-2)

    low, high, chosen = rows(least), rows(most), rows(indices)
    if not chosen.numel() or low.numel() * chosen.shape[1] > _MOST_COMPARED:
        return None
    numbers = torch.arange(indices.numel(), device=scores.device).reshape(indices.shape)
    undefined = rows(scores).isnan().any(dim=1, keepdim=True)
    ranges = []  # numbers of elements, with an index, twice, and the row
    for column, number in zip(chosen.unbind(1), rows(numbers).unbind(1), strict=True):
        own_low, own_high = (side.gather(1, column[:, None]) for side in (low, high))
        near = (low <= own_high) & (high >= own_low) | undefined
        row, index = torch.where(near & (near.sum(dim=1, keepdim=True) > 1))
        ranges.append(torch.stack([number[row], index, index, row]))
    for view in views:
        numbers = view.repeat(numbers)
    places = torch.full((indices.numel(),), -1, device=scores.device)
    places[numbers.reshape(-1)] = torch.arange(numbers.numel(), device=scores.device)
    number, *others = torch.cat(ranges, dim=1)
    ties = torch.stack([places[number], *others], dim=1)
    return np.asarray(ties[ties[:, 0] >= 0].cpu())


def _margin(value: torch.Tensor, moved: torch.Tensor | None) -> torch.Tensor:
    """Compute how far rounding moves the values of each sample.

    ``moved`` is the value where all operations have other last bits, None if not computed.
    """
    largest, least = _largest(value), _ROUNDINGS * torch.finfo(value.dtype).eps
    if moved is None or (moved.dtype, moved.shape) != (value.dtype, value.shape):
        return max(_UNMEASURED, least) * largest
    noise = _FACTOR * _largest(moved.double() - value.double())
    noise = torch.minimum(noise, _MOST_NOISE * largest)
    return torch.maximum(max(_ROUNDING, least) * largest, noise)


def _largest(values: torch.Tensor) -> torch.Tensor:
    """Find the largest finite magnitude of each sample."""
    sizes = torch.where(values.isfinite(), values.double().abs(), 0.0)
    if not sizes.numel():
        return sizes.sum()
    return sizes.amax([*range(1, sizes.ndim)], keepdim=True) if sizes.ndim > 1 else sizes.amax()
