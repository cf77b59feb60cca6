"""A second call of the network on the same inputs, which must not differ from the first.

A graph has the state of one call. The second call comes after the other shape cases, so a network
that keeps something of other inputs differs as well.
"""

from collections.abc import Sequence

from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.result_types import Doubt
from buildsys.onnx_graphs.tensor_comparison import compare
from buildsys.onnx_graphs.tensors import load_case
from buildsys.stages.reference.original import Original, State
from buildsys.workers.job import Job

_SAME = {"float16": 1e-2, "bfloat16": 5e-2}  # relative; both calls may round differently
_SAME_FLOAT32 = 1e-5
_MOST_NAMES = 4
_DRAWS = ("random", "numpy.random", "torch.random")
_HINT = (
    "pass what forward keeps as an input and return it as an output, and call eval() on all layers"
)
_DRAWS_HINT = "call eval() on all layers, and leave noise out or make it an input"


def compare_second_call(job: Job, original: Original, earlier: State) -> list[Doubt]:
    """Call a network again on its first inputs; return doubts about what it keeps.

    ``earlier`` is its state after the first call. A changed state is compared around a third call:
    the calls before may have filled caches for their sizes.
    Raises: CheckFailed: its outputs differ.
    """
    title, dims = next(iter(job.options["cases"].items()))
    first = load_case(job.outputs[f"case.{title}"])
    second, before = original.call(first.inputs, dims), original.kept_state(job.project)
    if changed := _changed(earlier, before):
        original.call(first.inputs, dims)
        changed = _changed(before, original.kept_state(job.project))
    limits = {"rtol": _SAME.get(first.float_type, _SAME_FLOAT32)}
    for output, tensor in first.outputs.items():
        if not compare(second[output], tensor, limits).passed:
            changed = changed or _changed(earlier, before)
            differs = f"output {output} differs in a second call on the inputs of case {title}"
            if draws := [name for name, _ in changed if name in _DRAWS]:
                problem = f"forward draws random numbers ({', '.join(draws)}): {differs}"
                raise CheckFailed(problem, _DRAWS_HINT)
            cause = f"it changes {_describe(changed)}" if changed else "it may read the time"
            raise CheckFailed(f"forward depends on earlier calls: {differs}; {cause}", _HINT)
    changed = [key for key in changed if key[0] != "torch.random"]  # which graphs draw as well
    doubts = []
    if changed:
        text = f"forward changes {_describe(changed)}, which an exported graph does not"
        doubts.append(Doubt(kind="state", text=text, place=_place(changed)))
    return doubts


def _changed(before: State, after: State) -> list[tuple[str, str]]:
    return [key for key in after if key not in before or before[key] != after[key]]


def _describe(changed: Sequence[tuple[str, str]]) -> str:
    names = ", ".join(name for name, _ in changed[:_MOST_NAMES])
    more = f" and {len(changed) - _MOST_NAMES} more" if len(changed) > _MOST_NAMES else ""
    return names + more + (f" ({place})" if (place := _place(changed)) else "")


def _place(changed: Sequence[tuple[str, str]]) -> str:
    return next((place for _, place in changed if place), "")
