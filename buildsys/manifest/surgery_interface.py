"""Inputs and outputs of a graph after surgery, from the manifest alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

AFTER_EXPORT, AFTER_SIMPLIFY = "after_export", "after_simplify"
WHENS = (AFTER_EXPORT, AFTER_SIMPLIFY)
Step = Mapping[str, Any]
Inputs = dict[str, dict[str, Any]]  # name -> shape and dtype
KINDS = ("function", "rename", "fix_dims", "cut", "replace", "cast")
REMOVED_KINDS = ("free_dims", "remove")  # docs/remedies/surgery.md has hooks for these


@dataclass(frozen=True)
class Interface:
    """Inputs with shapes and dtypes, and declared outputs."""

    inputs: Inputs
    outputs: tuple[str, ...] | None


def kind_of(step: Step) -> str:
    """Return the field selecting the kind of a step, or ""."""
    return next((kind for kind in KINDS if kind in step), "")


def steps_of(manifest: Mapping[str, Any], when: str) -> list[Step]:
    """Select the steps of one graph in order."""
    steps = manifest.get("surgery") or ()
    return [step for step in steps if step.get("when", AFTER_EXPORT) == when]


def exported_interface(manifest: Mapping[str, Any]) -> Interface:
    """Read the interface of the exported graph, before surgery."""
    declared = manifest.get("inputs") or {}  # none of a model that has commands only
    inputs = {name: _tensor(tensor, {}) for name, tensor in declared.items()}
    return Interface(inputs, tuple(manifest.get("outputs") or ()) or None)


def interface_after(interface: Interface, steps: Iterable[Step]) -> Interface:
    """Follow some steps from an interface to the next one."""
    inputs, outputs = dict(interface.inputs), interface.outputs
    for step in steps:
        names, values = step.get("rename") or {}, step.get("fix_dims") or {}
        inputs = {
            names.get(name, name): {
                **tensor,
                "shape": [values.get(size, size) for size in tensor["shape"]],
            }
            for name, tensor in inputs.items()
        }
        outputs = outputs and tuple(names.get(name, name) for name in outputs)
        for name, dtype in (step.get("cast") or {}).items():
            if name in inputs:
                inputs[name]["dtype"] = dtype
        cut = step.get("cut")
        declared = step if cut is None else cut  # a function's step declares them itself
        if declared.get("inputs") is not None:
            earlier = {} if cut is None else inputs  # for the fields that a cut omits
            inputs = {
                name: _tensor(tensor or {}, earlier.get(name, {}))
                for name, tensor in declared["inputs"].items()
            }
        if declared.get("outputs") is not None:
            outputs = tuple(declared["outputs"])
    return Interface(inputs, outputs)


def _tensor(declared: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    set_fields = {field: value for field, value in declared.items() if value is not None}
    merged = {"shape": (), "dtype": "float32", **earlier, **set_fields}
    return {"shape": list(merged["shape"]), "dtype": merged["dtype"]}


def fixed_dims(manifest: Mapping[str, Any]) -> dict[str, int]:
    """List the dimensions fixed by surgery, with their values."""
    steps = manifest.get("surgery") or ()
    return {name: value for step in steps for name, value in (step.get("fix_dims") or {}).items()}


def names_in_shapes(inputs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """List the dimensions named in shapes."""
    return {size for tensor in inputs.values() for size in tensor["shape"] if isinstance(size, str)}
