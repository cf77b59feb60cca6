"""Take one step: change the graph, let the checker judge it, compare what it computes, carry the golden cases on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onnx import ModelProto

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.surgery_interface import Interface, interface_after, kind_of
from buildsys.onnx_graphs.interface import interface, interface_changes
from buildsys.onnx_graphs.onnx_file import load_model, operator_counts, ports
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.stages.common.equivalence import (
    compare_cases,
    limits_of,
    random_operators,
    refuse_random_graph,
    run_cases,
)
from buildsys.stages.surgery import cut, free_dims, golden_cases, hooks, references, replace_nodes
from buildsys.stages.surgery import inputs_outputs as port_steps
from buildsys.stages.surgery.clean_up import write_checked
from buildsys.stages.surgery.state import Carried, Outputs, Point, Setting, Step

_SAME_INTERFACE = ("function", "replace", "remove")
_CARRIES = {
    "function": golden_cases.keep_named,
    "rename": golden_cases.rename,
    "cast": golden_cases.cast,
    "cut": golden_cases.cut,
}
Counts = Mapping[str, int]


@dataclass(frozen=True)
class Taken:
    """A step that was taken: the graph after it, and how its numbers compare."""

    title: str
    point: Point
    removed: Counts  # operator -> nodes
    added: Counts
    nodes: int
    against: str
    expected: Mapping[str, Outputs]
    compared: Mapping[str, Mapping[str, Comparison]]
    warnings: tuple[str, ...]
    basis: float | None
    hint: str

    def failures(self) -> Iterator[tuple[str, str, Comparison]]:
        """Yield case, output and comparison of what is not as it should be."""
        for case, outputs in self.compared.items():
            for name, found in outputs.items():
                if found.problem:
                    yield case, name, found


def title_of(step: Step) -> str:
    """Return what a step does, as its reader would put it."""
    kind = kind_of(step)
    told = step[kind]
    if kind == "cut":
        told = {side: list(told[side]) for side in ("inputs", "outputs") if told[side] is not None}
        return "cut " + ", ".join(f"{side} {', '.join(names)}" for side, names in told.items())
    if kind == "replace":
        return f"replace {told['op']} by {told['function']}"
    if kind == "remove":
        return f"remove {', '.join(told)}" + (f" named {step['name']}" if step["name"] else "")
    if kind == "free_dims":
        return "free_dims " + ", ".join(
            f"{name} {axis}: {dim}" for name, a in told.items() for axis, dim in a.items()
        )
    if kind == "function":
        return f"function {told}"
    return f"{kind} " + ", ".join(f"{old} → {new}" for old, new in told.items())


def take(step: Step, number: int, point: Point, setting: Setting) -> Taken:
    """Take one step; numbers that differ are told, not raised.

    Raises: StageError: it cannot be taken. CheckFailed: the graph is not valid, or has another interface.
    """
    before = load_model(point.path)
    counts, limits, promised = operator_counts(before), limits_of(before), interface(before)
    carried = golden_cases.cut(point, step, setting) if "cut" in step else None
    path = setting.scratch / f"step{number}" / "model.onnx"
    outputs = load_model(point.path, external_data=False).graph.output
    after = write_checked(_edit(before, step, point, setting, carried), path, outputs)
    _check_interface(step, promised, interface(after))
    carried = carried or _carry(step, point, setting, after)
    feeds = {case: tensors.inputs for case, tensors in carried.golden.items()}
    actual = run_cases(path, feeds, setting.runtime)
    compared = compare_cases(actual, carried.expected, carried.limits or limits)
    drawn_by = random_operators(counts)
    if drawn_by or any(
        found.problem for outputs in compared.values() for found in outputs.values()
    ):
        first = next(iter(point.golden.values())).inputs
        refuse_random_graph(
            point.path, "the graph before it", first, limits, drawn_by, setting.runtime
        )
    now = operator_counts(after)
    inputs = interface_after(Interface(dict(point.inputs), None), [step]).inputs
    return Taken(
        title=title_of(step),
        point=Point(path, inputs, carried.golden, actual),
        removed={
            op: count - now.get(op, 0) for op, count in counts.items() if count > now.get(op, 0)
        },
        added={
            op: count - counts.get(op, 0) for op, count in now.items() if count > counts.get(op, 0)
        },
        nodes=sum(now.values()),
        against=carried.against,
        expected=carried.expected,
        compared=compared,
        warnings=carried.warnings,
        basis=carried.basis,
        hint=_hint(step),
    )


def _edit(
    model: ModelProto, step: Step, point: Point, setting: Setting, carried: Carried | None
) -> ModelProto:
    kind = kind_of(step)
    if kind == "function":
        return hooks.call_hook(model, step, setting.project)
    if kind == "rename":
        return port_steps.rename(model, step)
    if kind == "fix_dims":
        return port_steps.fix_dims(model, step, point.inputs)
    if kind == "free_dims":
        return port_steps.free_dims(model, step)
    if kind == "replace":
        return replace_nodes.replace(model, step, setting.project)
    if kind == "remove":
        return replace_nodes.remove(model, step)
    if kind == "cast":
        return port_steps.cast(model, step)
    assert carried is not None
    inputs = interface_after(Interface(dict(point.inputs), None), [step]).inputs
    shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
    return cut.cut(model, step, shapes, golden_cases.cut_kinds(carried))


def _carry(step: Step, point: Point, setting: Setting, after: ModelProto) -> Carried:
    outputs = ports(after)[1]
    if step.get("reference") is not None:
        return references.refer(point, step, setting, outputs)
    if "free_dims" in step:
        return free_dims.free(point, step, setting, outputs)
    return _CARRIES.get(kind_of(step), golden_cases.keep)(point, step, setting)


def _check_interface(step: Step, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise CheckFailed where a step that may not, or not so, has changed inputs or outputs."""
    if kind_of(step) not in _SAME_INTERFACE:
        return
    promised = {side: _declared(step, side, before, after) for side in ("input", "output")}
    same_opset: dict[str, Any] = {
        "opset": {}
    }  # which may change: nobody who calls the graph sees it
    changed = next(interface_changes({**promised, **same_opset}, {**after, **same_opset}), None)
    if changed:
        hint = (
            "declare what it makes as inputs: or outputs: of the step" if "function" in step else ""
        )
        raise CheckFailed(f"it changed the interface of the graph: {changed}", hint)
    known = {side: {port["name"] for port in before[side]} for side in ("input", "output")}
    new = [
        port["name"]
        for side in ("input", "output")
        for port in promised[side]
        if port["name"] not in known[side]
    ]
    if new and step["changes"] == "nothing":
        raise StageError(
            f"{new[0]} is new, and nothing tells its values",
            "set changes: numbers, with a reference for the outputs",
        )


def _declared(
    step: Step, side: str, before: dict[str, Any], after: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the ports of one side as the step declares them; what it leaves open is as it was found."""
    declared = step.get(f"{side}s")
    if declared is None:
        ends: list[dict[str, Any]] = before[side]
        return ends
    found = {port["name"]: port for port in after[side]}
    return [
        {
            "name": name,
            "dtype": tensor["dtype"] or found.get(name, {}).get("dtype"),
            "shape": found.get(name, {}).get("shape")
            if tensor["shape"] is None
            else tensor["shape"],
        }
        for name, tensor in declared.items()
    ]


def _hint(step: Step) -> str:
    if "free_dims" in step:
        return free_dims.hint(step)
    if step.get("changes") == "nothing":
        return "if it is meant to: changes: numbers, with a reference"
    return ""
