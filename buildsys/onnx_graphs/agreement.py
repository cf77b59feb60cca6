"""Agreement of outputs with their references over all samples.

An error relative to the magnitude of an output hides behind an offset: a constant is a good
approximation of a sigmoid between 0.4 and 0.6, or of a temperature of 293 ± 2. What low precision
leaves of a network shows in the variation of its outputs, so errors are compared with the spread
over the samples, and the direction of the variation with that of the reference.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from buildsys.onnx_graphs.output_policies import REORDERED
from buildsys.onnx_graphs.result_types import AgreementFigures, format_beyond
from buildsys.onnx_graphs.tensor_comparison import (
    Comparison,
    has_many_values,
    is_image,
    likely_most,
)
from buildsys.onnx_graphs.tensors import Array, Tensor

Limits = Mapping[str, float | None]
Tensors = Mapping[str, Tensor]
Pair = tuple[Tensor, Tensor]
_LIMITS = ("spread_error", "correlation", "slope", "channel_error", "class_agreement")
_LEAST, _MOST_NAMED = ("correlation", "class_agreement"), 3
_LEAST_SAMPLES = 4
_JUDGED_FROM = 32  # values of a channel
_LEAST_SPREAD = 1e-6  # relative; below it only rounding in float32 varies
_QUIET, _LEAST_CHANNEL = 0.5, 1e-3  # spreads of slices, relative to the whole output's
_CLASSES_FROM = 5  # along an axis of more than two: fewer may be colours or coordinates
_DECIDED, _CLOSE, _TIE = 0.5, 0.05, 0.2  # margins of classes, of the spread within rows
_TOP = 5
_ROUNDING = 32 * 2.0**-23  # of the largest value: errors of float32
_INTEGER_TYPES = ("int", "uint", "bool")
_CLASSES_ONLY = ("tokens", "top_k")  # policies
_UNCOMPARED = ("detections", "set")  # policies without pairs of elements
_FLAT = "it hardly varies over the golden inputs"
_REMEDY = (
    ", which shows little of what the precision changes: give inputs.NAME.data other values, or"
    " dims more samples"
)


@dataclass(frozen=True)
class ComparedCase:
    """One case: inputs, reference, outputs and their comparison."""

    inputs: Tensors
    expected: Tensors
    actual: Tensors
    compared: Mapping[str, Comparison]


@dataclass(frozen=True)
class Agreement:
    """How an output follows its reference over the samples of all cases.

    ``spread_error`` is the root mean square of the error over that of the reference around its
    mean over the samples, ``channel_error`` the largest one of a channel. ``correlation`` and
    ``slope`` compare the variation around the means: both are 0 for a constant output, and 1 for
    an equal one. ``top1`` is the share of rows with the same largest value along the axis of
    classes, ``class_agreement`` that share if classes that nearly tie are equal, and ``top5`` the
    share of rows with the reference's class among the five largest. ``uninformative`` says why
    there are no figures.
    """

    samples: int
    spread_error: float = 0.0
    correlation: float = 1.0
    slope: float = 1.0
    channel_error: float | None = None
    channel: str = ""
    class_agreement: float | None = None
    rows: int = 0  # with classes
    top1: float | None = None
    top5: float | None = None
    is_rounding: bool = False  # of float32
    limited: tuple[str, ...] = _LIMITS
    uninformative: str = ""

    def figures(self) -> AgreementFigures:
        """Collect the numbers for a result file."""
        if self.uninformative:
            return {"samples": self.samples, "uninformative": self.uninformative}
        numbers = {name: getattr(self, name) for name in (*self.limited, "top1", "top5")}
        measured = {name: number for name, number in numbers.items() if number is not None}
        return cast(AgreementFigures, {"samples": self.samples, **measured})

    def problem(self, limits: Limits) -> str:
        """Name the figures beyond ``limits``, the most telling first; empty without any."""
        figures = (
            ("correlation", self.correlation, "correlation {}"),
            ("class_agreement", self.class_agreement, "class agreement {}"),
            ("spread_error", self.spread_error, "error {} of the spread"),
            ("slope", abs(self.slope - 1), "slope off by {}"),
            ("channel_error", self.channel_error, f"error {{}} in {self.channel}"),
        )
        broken = []
        for name, figure, text in figures:
            limit = limits.get(name) if name in self.limited else None
            if figure is None or limit is None or self._is_excused(name, limit):
                continue
            sign, word = (-1, "at least") if name in _LEAST else (1, "allowed")
            if not sign * figure <= sign * limit:  # so that a NaN counts as broken
                broken.append(f"{text.format(format_beyond(figure, limit))} ({word} {limit:.9g})")
        if (more := len(broken) - _MOST_NAMED) > 0:
            broken[_MOST_NAMED:] = [f"{more} more"]
        return f"over {self.samples} samples: {', '.join(broken)}" if broken else ""

    def _is_excused(self, name: str, limit: float) -> bool:
        """Check for rounding of float32, and for other classes that are likely in so few rows."""
        if name == "class_agreement":
            others = self.rows * (1 - (self.class_agreement or 0.0))
            return others <= likely_most(self.rows, limit)
        return name == "spread_error" and self.is_rounding


def output_agreements(cases: Sequence[ComparedCase], limits: Limits) -> dict[str, Agreement]:
    """Measure all outputs, if ``limits`` has one for their agreement.

    Left out are complex numbers and strings, outputs with a failed case, rows in another order or a
    policy with limits of its own, and in full precision integers and excused errors. Policies about
    classes leave only this limit.
    """
    if not cases or all(limits.get(name) is None for name in _LIMITS):
        return {}
    is_low = limits.get("class_agreement") is not None
    agreements = {}
    for output in cases[0].expected:
        comparisons = [case.compared.get(output) for case in cases]
        if any(c is None or not c.passed or c.has_own_limits for c in comparisons):
            continue
        policies, notes = ({getattr(c, name) for c in comparisons} for name in ("policy", "note"))
        if not policies.isdisjoint(_UNCOMPARED) or REORDERED in notes:
            continue
        pairs = [(case.actual[output], case.expected[output]) for case in cases]
        are_integers = all(y.dtype.startswith(_INTEGER_TYPES) for _, y in pairs)
        if not is_low and (are_integers or notes != {""}):
            continue
        if are_integers and (shares := _equal_share(pairs, limits)):
            agreements[output] = shares
            continue
        counts_samples = all(
            case.expected[output].shape[:1] in {tensor.shape[:1] for tensor in case.inputs.values()}
            for case in cases
        )
        near_tie = (limits.get("spread_error", _TIE) or 0.0) / 2
        measured = measure_agreement(pairs, counts_samples=counts_samples, near_tie=near_tie)
        if measured is None or (measured.uninformative and not is_low):
            continue
        if not policies.isdisjoint(_CLASSES_ONLY):
            measured = replace(measured, limited=("class_agreement",))
        agreements[output] = measured
    return agreements


def _equal_share(pairs: Sequence[Pair], limits: Limits) -> Agreement | None:
    """Measure the share of equal integers; None for images, and for close counts."""
    x, y = (np.concatenate([np.ravel(pair[side].array) for pair in pairs]) for side in (0, 1))
    if is_image(Tensor(y, pairs[0][1].dtype)):
        return None
    share, limited = float((x == y).mean()) if y.size else 1.0, ("class_agreement",)
    shares = Agreement(y.size, class_agreement=share, rows=y.size, limited=limited)
    return None if shares.problem(limits) and has_many_values(y) else shares


def measure_agreement(
    pairs: Sequence[Pair], *, counts_samples: bool, near_tie: float = 0.0
) -> Agreement | None:
    """Compare outputs with their references of equal shapes; None for other values than numbers.

    With ``counts_samples``, the first axis counts samples, otherwise each pair is one. Pairs of
    another shape than most samples are left out. A class whose reference is below the largest by
    at most ``near_tie`` times the spread within rows is right as well.
    """
    stacked = _stacked(pairs, counts_samples)
    if stacked is None:
        return None
    x, y = stacked
    if not y.size:
        return Agreement(len(y), uninformative="it is empty")
    if len(y) < _LEAST_SAMPLES:
        few = f"the golden inputs have {len(y)} samples of its shape, too few to see it vary"
        return Agreement(len(y), uninformative=few + _REMEDY)
    mean_x, mean_y = (v.mean(axis=0) for v in (x, y))
    largest, spread = float(np.abs(y).max()), _rms(y - mean_y)
    if not spread > _LEAST_SPREAD * largest:
        return Agreement(len(y), uninformative=_FLAT + _REMEDY)
    own, reference, error = ((v / spread) for v in (x - mean_x, y - mean_y, x - y))
    common, size = float((own * reference).mean()), _rms(own)
    channel_error, channel = _worst_channel(error, reference)
    return Agreement(
        samples=len(y),
        spread_error=_rms(error),
        correlation=common / size if size > 0.0 else 0.0,
        slope=common,
        channel_error=channel_error,
        channel=channel,
        is_rounding=_rms(error) * spread <= _ROUNDING * largest,
        **_compare_classes(x, y, near_tie),
    )


def _stacked(pairs: Sequence[Pair], counts_samples: bool) -> tuple[Array, Array] | None:
    """Stack the samples of the commonest shape in float64; infinite elements become zero."""
    groups: dict[tuple[int, ...], list[tuple[Array, Array]]] = {}
    for actual, expected in pairs:
        if expected.values().dtype.kind not in "fiu":
            return None
        x, y = (tensor.values().astype(np.float64) for tensor in (actual, expected))
        if "float" not in expected.dtype:  # rounding decides about steps of one
            x = np.where(np.abs(x - y) <= 1, y, x)
        if not (counts_samples and y.ndim):
            x, y = x[None], y[None]
        groups.setdefault(y.shape[1:], []).append((x, y))
    largest = max(groups.values(), key=lambda group: sum(len(y) for _, y in group))
    x, y = (np.concatenate(side) for side in zip(*largest, strict=True))
    usable = np.isfinite(x) & np.isfinite(y)
    return np.where(usable, x, 0.0), np.where(usable, y, 0.0)


def _rms(values: Array) -> float:
    largest = float(np.abs(values).max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    # divided first: squares of 1e200 overflow
    return largest * float(np.sqrt(np.mean((values / largest) ** 2)))


def _worst_channel(error: Array, reference: Array) -> tuple[float | None, str]:
    """Find the slice with the largest error of its own spread, over all axes but the samples'.

    Both arrays are in units of the whole output's spread. Errors of a quiet channel count half, as
    rounding of the others reaches it; those of a quiet place are relative to half of that spread.
    """
    worst, name = None, ""
    for axis in range(1, error.ndim):
        if error.shape[axis] < 2 or error.size // error.shape[axis] < _JUDGED_FROM:
            continue
        others = tuple(i for i in range(error.ndim) if i != axis)
        errors, spreads = (np.sqrt((v**2).mean(axis=others)) for v in (error, reference))
        quiet = np.minimum(_QUIET, 2 * np.maximum(spreads, _LEAST_CHANNEL))
        is_channel = axis == _channel_axis(error)
        shares = errors / np.maximum(spreads, quiet if is_channel else _QUIET)
        place = int(np.argmax(shares))
        if worst is None or shares[place] > worst:
            worst, name = float(shares[place]), f"slice {place} of axis {axis}"
    return worst, name


def _channel_axis(values: Array) -> int:
    """Choose the axis of channels or classes: images have it second, rows of logits last."""
    return 1 if values.ndim >= 4 else values.ndim - 1


def _compare_classes(x: Array, y: Array, near_tie: float) -> dict[str, Any]:
    """Compare the largest values along the axis that may hold classes; {} without one.

    Where most rows have a clear class, only close ones tie; elsewhere, as in embeddings, half of
    the allowed error decides about the largest value.
    """
    axis = _channel_axis(y)
    if y.ndim < 2 or y.shape[axis] < (2 if y.ndim == 2 else _CLASSES_FROM):
        return {}
    x, y = (np.moveaxis(v, axis, -1).reshape(-1, v.shape[axis]) for v in (x, y))
    spread = _rms(y - y.mean(axis=1, keepdims=True))
    largest = np.sort(y, axis=1)[:, -2:]
    is_clear = bool(np.median(largest[:, 1] - largest[:, 0]) >= _DECIDED * spread)
    lost = largest[:, 1] - np.take_along_axis(y, x.argmax(axis=1)[:, None], axis=1)[:, 0]
    tie = (min(near_tie, _CLOSE) if is_clear else near_tie) * spread
    figures = {"rows": len(y), "class_agreement": float((lost <= tie).mean())}
    figures["top1"] = float((lost <= 0).mean())
    if y.shape[1] > _TOP:
        chosen = np.take_along_axis(x, y.argmax(axis=1)[:, None], axis=1)
        figures["top5"] = float(((x > chosen).sum(axis=1) < _TOP).mean())
    return figures
