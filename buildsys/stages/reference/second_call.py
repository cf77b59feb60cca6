"""A second call of the network on the same inputs, which must not differ from the first.

A graph has the state of one call. The second call comes after all cases, so a network that keeps
something of other inputs differs as well; caches that the first call has filled do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import Case, Tensor

if TYPE_CHECKING:
    from torch import nn

_SAME = {"float16": 1e-2, "bfloat16": 5e-2}  # relative; both calls may round differently
_SAME_FLOAT32 = 1e-5
_MOST_NAMES = 4
_HINT = (
    "pass what forward keeps as an input and return it as an output, and call eval() on all layers"
)


def compare_second_call(
    call: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    module: nn.Module | None,
    first: Case,
    title: str,
    project: Path,
) -> list[Doubt]:
    """Call a network again with the inputs of ``first``; return doubts about what it keeps.

    Raises: CheckFailed: its outputs differ.
    """
    changed: list[tuple[str, str]] = []
    if module is None:
        second = call(first.inputs)
    else:
        from buildsys.models.kept_state import changed_state, read_state  # needs torch

        before = read_state(module, project)
        second = call(first.inputs)
        changed = changed_state(before, read_state(module, project))
    names = ", ".join(name for name, _ in changed[:_MOST_NAMES])
    names += f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    place = next((place for _, place in changed if place), "")
    where = f" ({place})" if place else ""
    limits = {"rtol": _SAME.get(first.float_type, _SAME_FLOAT32)}
    for output, tensor in first.outputs.items():
        if not compare(second[output], tensor, limits).passed:
            cause = f"it changes {names}{where}" if names else "it may read the time or random bits"
            raise CheckFailed(
                f"forward depends on earlier calls: output {output} differs in a second call on"
                f" the inputs of case {title}; {cause}",
                _HINT,
            )
    text = f"forward changes {names}{where}, which a graph does not"
    return [Doubt(kind="state", text=text, place=place)] if changed else []
