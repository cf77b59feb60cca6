"""Inputs and outputs of a graph after surgery, from the manifest alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

AFTER_EXPORT, AFTER_SIMPLIFY = "after_export", "after_simplify"
WHENS = (AFTER_EXPORT, AFTER_SIMPLIFY)
Step = Mapping[str, Any]
Inputs = dict[str, dict[str, Any]]  # name -> shape and dtype
KINDS = ("function", "rename", "fix_dims", "free_dims", "cut", "replace", "remove", "cast")


@dataclass(frozen=True)
class Interface:
    """Inputs with shapes and dtypes, and declared outputs."""

    inputs: Inputs
    outputs: tuple[str, ...] | None


def kind_of(step: Step) -> str:
    """Return the field selecting the kind of a step, or ""."""
    return next((kind for kind in KINDS if kind in step), "")


def steps_of(manifest: Mapping[str, Any], when: str) -> list[Step]:
    """Return the steps of one graph in order."""
    steps = manifest.get("surgery") or ()
    return [step for step in steps if step.get("when", AFTER_EXPORT) == when]


def exported_interface(manifest: Mapping[str, Any]) -> Interface:
    """Return the interface of the exported graph, before surgery."""
    inputs = {
        name: {"shape": list(tensor.get("shape") or ()), "dtype": tensor.get("dtype", "float32")}
        for name, tensor in manifest["inputs"].items()
    }
    return Interface(inputs, tuple(manifest.get("outputs") or ()) or None)


def interface_after(interface: Interface, steps: Iterable[Step]) -> Interface:
    """Return the interface after some steps."""
    for step in steps:
        change = _CHANGES.get(kind_of(step))
        interface = change(interface, step) if change else interface
    return interface


def fixed_dims(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Return the dimensions fixed by surgery, with their values."""
    steps = [step for when in WHENS for step in steps_of(manifest, when)]
    return {name: value for step in steps for name, value in (step.get("fix_dims") or {}).items()}


def names_in_shapes(inputs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Return the dimensions named in shapes."""
    return {size for tensor in inputs.values() for size in tensor["shape"] if isinstance(size, str)}


def _function(interface: Interface, step: Step) -> Interface:
    inputs, outputs = step.get("inputs"), step.get("outputs")
    if inputs is not None:
        declared = {
            name: {"shape": list(tensor["shape"]), "dtype": tensor.get("dtype", "float32")}
            for name, tensor in inputs.items()
        }
        interface = replace(interface, inputs=declared)
    return interface if outputs is None else replace(interface, outputs=tuple(outputs))


def _rename(interface: Interface, step: Step) -> Interface:
    names = step["rename"]
    inputs = {names.get(name, name): tensor for name, tensor in interface.inputs.items()}
    outputs = interface.outputs
    return Interface(inputs, outputs and tuple(names.get(name, name) for name in outputs))


def _fix_dims(interface: Interface, step: Step) -> Interface:
    values = step["fix_dims"]
    inputs = {
        name: {**tensor, "shape": [values.get(size, size) for size in tensor["shape"]]}
        for name, tensor in interface.inputs.items()
    }
    return replace(interface, inputs=inputs)


def _free_dims(interface: Interface, step: Step) -> Interface:
    inputs = dict(interface.inputs)
    for name, axes in step["free_dims"].items():
        if name in inputs:
            shape = list(inputs[name]["shape"])
            for axis, dim in axes.items():
                if -len(shape) <= int(axis) < len(shape):
                    shape[int(axis)] = dim
            inputs[name] = {**inputs[name], "shape": shape}
    return replace(interface, inputs=inputs)


def _cut(interface: Interface, step: Step) -> Interface:
    inputs, outputs = step["cut"].get("inputs"), step["cut"].get("outputs")
    if inputs is not None:
        declared: Inputs = {}
        for name, tensor in inputs.items():
            # omitted fields of an existing input are unchanged
            known = interface.inputs.get(name, {"shape": [], "dtype": "float32"})
            given = {field: value for field, value in (tensor or {}).items() if value is not None}
            merged = known | given
            declared[name] = {"shape": list(merged["shape"]), "dtype": merged["dtype"]}
        interface = replace(interface, inputs=declared)
    return interface if outputs is None else replace(interface, outputs=tuple(outputs))


def _cast(interface: Interface, step: Step) -> Interface:
    inputs = dict(interface.inputs)
    for name, dtype in step["cast"].items():
        if name in inputs:
            inputs[name] = {**inputs[name], "dtype": dtype}
    return replace(interface, inputs=inputs)


_CHANGES = {
    "function": _function,
    "rename": _rename,
    "fix_dims": _fix_dims,
    "free_dims": _free_dims,
    "cut": _cut,
    "cast": _cast,
}
