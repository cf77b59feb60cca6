"""Checks of surgery steps against the rest of the manifest.

Steps are followed in order, each with the inputs and outputs that the previous ones leave. Names
inside the graph and undeclared outputs are known to the stage only.
"""

from collections.abc import Iterator

from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.shape_cases import (
    AFTER_EXPORT,
    WHENS,
    Interface,
    Step,
    exported_interface,
    interface_after,
)
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView

StepProblem = tuple[FieldPath, str, str]  # path below the step, problem, hint


def problems(view: ManifestView) -> Problems:
    """Yield the problems of steps."""
    interface = exported_interface({name: view.get(name) for name in ("inputs", "outputs")})
    for when in WHENS:
        for number, step in enumerate(view.list("surgery")):
            if step.get("when", AFTER_EXPORT) == when:
                for path, text, hint in _step_problems(interface, step):
                    yield view.problem(("surgery", number, *path), text, hint, of_key=True)
                interface = interface_after(interface, [step])


def _step_problems(interface: Interface, step: Step) -> Iterator[StepProblem]:
    for name in step.get("inputs") or ():
        if name not in interface.inputs and step.get("changes") != "numbers":
            text = f'input "{name}" is new, so its outputs cannot be compared with earlier ones'
            yield ("inputs", name), text, "set changes: numbers, with a reference for the outputs"
    new_names = list(step.get("rename", {}).values())
    tensors = (*interface.inputs, *(interface.outputs or ()))
    for old, name in step.get("rename", {}).items():
        if interface.outputs is not None and old not in tensors:
            text = f'unknown input or output "{old}" at this step'
            yield ("rename", old), text, suggest(old, tensors)
        if new_names.count(name) > 1:
            yield ("rename", old), f'two tensors would be named "{name}"', "choose another name"
    for name, tensor in (step.get("cut", {}).get("inputs") or {}).items():
        shape, path = (tensor or {}).get("shape"), ("cut", "inputs", name)
        if shape is None and name not in interface.inputs:
            yield path, f'new input "{name}" needs a shape', f"write {name}: {{shape: […]}}"
        elif shape is not None and None in shape:
            text = "the shape of an input must be complete"
            yield (*path, "shape"), text, "replace null by a number or a name of dims"
    for name in step.get("cast", {}):
        if name not in interface.inputs:
            hint = suggest(name, interface.inputs, what="inputs")
            yield ("cast", name), f'unknown input "{name}" at this step', hint
