"""What must hold between the steps of surgery and the rest of a manifest: names, axes and dimensions that exist.

Steps are followed one by one, each on the interface that those before it leave. Names inside the graph, and outputs
that the manifest does not declare, are known to the stage alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from buildsys.manifest.problem import Problem, suggest
from buildsys.manifest.surgery_interface import (
    AFTER_EXPORT,
    WHENS,
    Inputs,
    Interface,
    exported_interface,
    interface_after,
    kind_of,
)
from buildsys.manifest.value_ranges import data_problem
from buildsys.manifest.value_tree import Key

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)  # validation tells what is wrong
Found = tuple[Key, str, str]  # below the step: key, problem, hint


def surgery_problems(view: View) -> Iterator[Problem]:
    """Yield what is wrong with the steps of a merged model."""
    for when in WHENS:
        try:
            interface = _interface_before(view, when)
            for number, step in _steps(view, when):
                for key, text, hint in list(
                    _CHECKS.get(kind_of(step), _nothing)(view, interface, step)
                ):
                    yield view.problem(("surgery", number, *key), text, hint, of_key=True)
                interface = interface_after(interface, [step])
        except _MALFORMED:
            return


def shapes_after_surgery(view: View) -> dict[str, list[Any]]:
    """Return the shapes of the inputs that engines take, as far as the manifest says them."""
    try:
        interface = _interface_before(view, WHENS[-1])
        inputs = interface_after(interface, [step for _, step in _steps(view, WHENS[-1])]).inputs
        return {name: tensor["shape"] for name, tensor in inputs.items()}
    except _MALFORMED:
        return {name: view.list("inputs", name, "shape") for name in view.map("inputs")}


def dims_of_surgery(view: View) -> set[str]:
    """Return the dimensions that only steps of surgery name."""
    named: set[str] = set()
    for step in view.list("surgery"):
        try:
            named |= {
                str(dim) for axes in (step.get("free_dims") or {}).values() for dim in axes.values()
            }
            for inputs in (step.get("inputs"), (step.get("cut") or {}).get("inputs")):
                shapes = [(tensor or {}).get("shape") or [] for tensor in (inputs or {}).values()]
                named |= {size for shape in shapes for size in shape if isinstance(size, str)}
        except _MALFORMED:
            continue
    return named


def _steps(view: View, when: str) -> list[tuple[int, Any]]:
    steps = enumerate(view.list("surgery"))
    return [(number, step) for number, step in steps if step.get("when", AFTER_EXPORT) == when]


def _interface_before(view: View, when: str) -> Interface:
    interface = exported_interface(view.data)
    for earlier in WHENS[: WHENS.index(when)]:
        interface = interface_after(interface, [step for _, step in _steps(view, earlier)])
    return interface


def _nothing(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    del view, interface, step
    yield from ()


def _function(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    for name, tensor in (step.get("inputs") or {}).items():
        yield from _undeclared(view, ("inputs", name), tensor["shape"])
        found = data_problem(tensor.get("dtype", "float32"), tensor.get("data"))
        if found:
            field, text, hint = found
            yield ("inputs", name, *(("data", field) if field else ())), text, hint
        if name not in interface.inputs and step.get("changes") != "numbers":
            hint = "set changes: numbers, with a reference for the outputs"
            yield (
                ("inputs", name),
                "a new input, and nothing tells the outputs for its values",
                hint,
            )


def _rename(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    del view
    new = list(step["rename"].values())
    for old, name in step["rename"].items():
        if interface.outputs is not None and old not in (*interface.inputs, *interface.outputs):
            known = (*interface.inputs, *interface.outputs)
            yield (
                ("rename", old),
                "no input or output has this name here",
                suggest(old, known, what="they are"),
            )
        if new.count(name) > 1:
            yield ("rename", old), f"two tensors would be named {name}", ""


def _fix_dims(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    dynamic = _sizes(interface.inputs)
    for name, value in step["fix_dims"].items():
        if name not in dynamic:
            yield (
                ("fix_dims", name),
                "no input has this dimension here",
                suggest(name, dynamic, what="dimensions"),
            )
            continue
        span = view.map("dims", name)
        low, high, step_size = span["min"], span["max"], span.get("multiple_of", 1)
        if not low <= value <= high or value % step_size:
            multiple = f" in steps of {step_size}" if step_size != 1 else ""
            yield (
                ("fix_dims", name),
                f"{value} is outside the range of {name} ({low} to {high}{multiple})",
                "",
            )


def _free_dims(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    names = {dim for axes in step["free_dims"].values() for dim in axes.values()}
    if len(names) > 1 and not step.get("reference"):
        text = f"{' and '.join(sorted(names))} are freed at once, so that only a reference can tell the outputs"
        yield ("free_dims",), text, "reference: {python: FILE.py:CALLABLE}"
    for tensor, axes in step["free_dims"].items():
        if interface.outputs is not None and tensor not in (*interface.inputs, *interface.outputs):
            known = (*interface.inputs, *interface.outputs)
            yield (
                ("free_dims", tensor),
                "no input or output has this name here",
                suggest(tensor, known, what="they are"),
            )
        for axis, dim in axes.items():
            yield from _undeclared(view, ("free_dims", tensor, axis), [dim])
            if tensor in interface.inputs:
                yield from _not_fixed(
                    interface.inputs[tensor]["shape"], ("free_dims", tensor, axis)
                )


def _not_fixed(shape: list[Any], key: Key) -> Iterator[Found]:
    axis = int(key[-1])
    if not -len(shape) <= axis < len(shape):
        yield (
            key,
            f"axis {axis} is outside the shape of {key[-2]}, which has {len(shape)} dimensions",
            "",
        )
    elif isinstance(shape[axis], str):
        yield key, f"axis {axis} of {key[-2]} is dynamic already: {shape[axis]}", "remove it"


def _cut(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    for name, tensor in (step["cut"].get("inputs") or {}).items():
        shape = (tensor or {}).get("shape")
        key: Key = ("cut", "inputs", name)
        if shape is None and name not in interface.inputs:
            yield key, "it is no input here, so that its shape is wanted", f"{name}: {{shape: […]}}"
        elif shape is not None and None in shape:
            yield (*key, "shape"), "an input needs every size: a number or a name of dims", ""
        yield from _undeclared(view, key, shape or [])


def _cast(view: View, interface: Interface, step: Any) -> Iterator[Found]:
    del view
    for name, dtype in step["cast"].items():
        if name not in interface.inputs:
            yield (
                ("cast", name),
                "no input has this name here",
                suggest(name, interface.inputs, what="they are"),
            )
        elif interface.inputs[name]["dtype"] == dtype:
            yield ("cast", name), f"{name} is {dtype} already", "remove it"


def _undeclared(view: View, key: Key, shape: list[Any]) -> Iterator[Found]:
    declared = view.map("dims")
    for size in shape:
        if isinstance(size, str) and size not in declared:
            add = f"add dims: {{{size}: {{min: …, opt: …, max: …}}}}"
            yield (
                key,
                f"the dimension {size} is not declared in dims",
                suggest(size, declared, what="declared") or add,
            )


def _sizes(inputs: Inputs) -> list[str]:
    return [size for tensor in inputs.values() for size in tensor["shape"] if isinstance(size, str)]


_CHECKS = {
    "function": _function,
    "rename": _rename,
    "fix_dims": _fix_dims,
    "free_dims": _free_dims,
    "cut": _cut,
    "cast": _cast,
}
