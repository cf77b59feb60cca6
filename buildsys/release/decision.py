"""The choice among the engines of a release: a pure function of index, machine and wishes.

Of each engine counts the latency on a device of this name, else on one of the same kind. The
fastest is first; engines that were measured on neither follow. Standard library only.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from buildsys.errors import EngineError
from buildsys.release.index import Index, Variant
from buildsys.system.backend_registry import Machine, Reason
from buildsys.system.compatibility import machine_reasons

REQUEST = "request"  # the kind of reasons that are wishes


class Wishes(NamedTuple):
    """What an engine must be, besides able to run."""

    model: str = ""  # "": the only one
    backend: str = ""
    precision: str = ""
    max_error: float | None = None


ANY = Wishes()


class Choice(NamedTuple):
    """An engine that can run, and the latency that ranks it."""

    variant: Variant
    p50_ms: float | None = None
    device: str = ""  # that it was measured on
    same_device: bool = False


class Refusal(NamedTuple):
    """An engine that is not used, with the reasons."""

    variant: Variant
    reasons: tuple[Reason, ...]


class Decision(NamedTuple):
    """The engines that can be used, the best first, and all others."""

    choices: tuple[Choice, ...]
    refusals: tuple[Refusal, ...]


def decide(index: Index, machine: Machine, wishes: Wishes = ANY) -> Decision:
    """Rank the engines that a machine can run, and explain every refusal.

    Raises: EngineError: the wishes name no model of several, or another one.
    """
    models = sorted({variant.model for variant in index.variants})
    if wishes.model not in models and (wishes.model or len(models) != 1):
        named = f"has no model {wishes.model!r}" if wishes.model else "has several models"
        hint = f"name one of {', '.join(models) or 'none'}"
        raise EngineError(f"the release {index.release} {named}", hint)
    choices, refusals = [], []
    for variant in index.variants:
        if wishes.model in ("", variant.model):
            reasons = (*_unwished(variant, wishes), *machine_reasons(variant.record, machine))
            if reasons:
                refusals.append(Refusal(variant, reasons))
            else:
                choices.append(_measured(variant, machine))
    choices.sort(key=_order)
    return Decision(tuple(choices), tuple(sorted(refusals, key=lambda r: r.variant.name)))


def _unwished(variant: Variant, wishes: Wishes) -> Iterator[Reason]:
    for what, actual, wish in (
        ("backend", variant.backend, wishes.backend),
        ("precision", variant.precision, wishes.precision),
    ):
        if wish and actual != wish:
            yield Reason(REQUEST, f"its {what} is {actual}, and {wish} was requested", "")
    if wishes.max_error is not None and not (
        variant.error is not None and variant.error <= wishes.max_error
    ):
        error = "unknown" if variant.error is None else f"{variant.error:.2g}"
        problem = f"its error is {error}, and at most {wishes.max_error:.2g} was requested"
        yield Reason(REQUEST, problem, "")


def _measured(variant: Variant, machine: Machine) -> Choice:
    """Find the latency that says most about this machine."""
    names = {machine.cpu, *(gpu.get("name") for gpu in machine.gpus[:1])} - {""}
    kinds = {"cpu"} | ({"gpu"} if machine.gpus else set())
    fitting = [
        Choice(variant, one.p50_ms, one.device, one.device in names)
        for one in variant.measured
        if one.device in names or one.kind in kinds
    ]
    same = [choice for choice in fitting if choice.same_device]
    return min(same or fitting, key=_order, default=Choice(variant))


def _order(choice: Choice) -> tuple[bool, float, bool, float, str]:
    variant, p50_ms = choice.variant, choice.p50_ms
    error = math.inf if variant.error is None else variant.error
    return p50_ms is None, p50_ms or 0.0, not choice.same_device, error, variant.name
