"""Shape cases, and the inputs and outputs of a graph after surgery, from the manifest alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

AFTER_EXPORT, AFTER_SIMPLIFY = "after_export", "after_simplify"
ALL_CASES = ("min", "opt", "max", "odd")
WHENS = (AFTER_EXPORT, AFTER_SIMPLIFY)
Step = Mapping[str, Any]
Inputs = dict[str, dict[str, Any]]  # name -> shape and dtype
KINDS = ("function", "rename", "cut", "cast")
_NEW_INTERFACE = KINDS[1:]
DimRange = Mapping[str, int | None]  # min, opt, max, odd, multiple_of as in the manifest
Dims = dict[str, int]
_MOST_TRIED = 65  # sizes of a range, the smallest first


def case_values(dims: Mapping[str, DimRange]) -> dict[str, Dims]:
    """Choose the dimension values of all four cases."""
    cases = {
        case: {name: _value(span, case) for name, span in dims.items()}
        for case in ("min", "opt", "max")
    }
    odd: Dims = {}
    for name, span in dims.items():
        declared = span.get("odd")
        odd[name] = _choose_odd(span, set(odd.values())) if declared is None else declared
    return {**cases, "odd": odd}


def representatives(every: Mapping[str, Dims]) -> dict[str, str]:
    """Return case -> representative case with the same values.

    All cases of a model without dynamic dimensions are represented by ``opt``.
    """
    preferred = dict.fromkeys(("opt", "min", "max", "odd", *every))
    return {case: next(name for name in preferred if every[name] == every[case]) for case in every}


def example_dims(dims: Mapping[str, DimRange]) -> Dims:
    """Choose the dimension values for tracing an export.

    As small as the ranges allow, but at least 2 (a size of 1 broadcasts, and a tracer may bake that
    in) and different from each other (a tracer may take equal sizes for one dimension). They depend
    on ``min`` alone if possible, so a changed ``opt`` or ``max`` does not affect the export.
    """
    values: Dims = {}
    for name, span in dims.items():
        candidates = [value for value in allowed_sizes(span)[:_MOST_TRIED] if value >= 2]
        unused = (value for value in candidates if value not in values.values())
        values[name] = next(unused, candidates[0] if candidates else _value(span, "max"))
    return values


def concrete_shape(shape: Iterable[int | str], dims: Mapping[str, int]) -> tuple[int, ...]:
    """Replace every named dimension of a shape by its value."""
    return tuple(dims[size] if isinstance(size, str) else size for size in shape)


def dims_of_shapes(
    declared: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Sequence[int]]
) -> Dims:
    """Read the sizes of the named dimensions from the shapes of all inputs."""
    return {
        name: size
        for tensor, shape in declared.items()
        for name, size in zip(shape, shapes[tensor], strict=True)
        if isinstance(name, str)
    }


def format_dims(dims: Mapping[str, int]) -> str:
    """Format sizes as ``batch 8, length 128``."""
    return ", ".join(f"{name} {size}" for name, size in dims.items())


def format_case(case: str, dims: Mapping[str, int]) -> str:
    """Format a case with its sizes: ``odd (batch 3)``. ``batch=12`` has them already."""
    return f"{case} ({format_dims(dims)})" if dims and "=" not in case else case


def _choose_odd(span: DimRange, taken: set[int]) -> int:
    usual = {_value(span, "min"), _value(span, "opt"), _value(span, "max")}
    step = _value(span, "multiple_of")
    inside = [value for value in allowed_sizes(span)[:_MOST_TRIED] if value not in usual]
    odd = [value for value in inside if (value // step) % 2]
    free = [value for value in (*odd, *inside) if value not in taken]
    return next(iter((*free, *inside)), _value(span, "opt"))


def allowed_sizes(span: DimRange) -> range:
    """List the sizes that a range of the manifest allows."""
    step, low, high = _value(span, "multiple_of"), _value(span, "min"), _value(span, "max")
    return range(low, high + 1, step)


def _value(span: DimRange, field: str) -> int:
    value = span.get(field)
    return 1 if value is None else value


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
        names = step.get("rename") or {}
        inputs = {names.get(name, name): dict(tensor) for name, tensor in inputs.items()}
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


def changes_golden(steps: Iterable[Step]) -> bool:
    """Check if ``steps`` change golden tensors or their names."""
    return any(
        kind_of(step) in _NEW_INTERFACE
        or step.get("changes") == "numbers"
        or step.get("inputs") is not None
        or step.get("outputs") is not None
        for step in steps
    )


def images_of(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Collect the inputs that engines preprocess: their steps, shape and dtype."""
    images = {}
    for name, tensor in (manifest.get("inputs") or {}).items():
        steps = tensor.get("preprocess") or {}
        if steps.get("inside") and len(tensor["shape"]) == 4:
            images[name] = {**steps, **_tensor(tensor, {})}
    return images


def image_ports(images: Mapping[str, Mapping[str, Any]]) -> Inputs:
    """Describe the inputs of engines that preprocess: raw images, channels last."""
    ports = {}
    for name, image in images.items():
        *batch, high, wide, channels = image["shape"]
        if image.get("layout", "nchw") == "nchw":
            channels, high, wide = high, wide, channels
        size = image.get("size") or (high, wide)
        ports[name] = {"shape": [*batch, *size, channels], "dtype": "uint8"}
    return ports


def data_after(data: Mapping[str, Any], steps: Iterable[Step]) -> dict[str, Any]:
    """Follow some steps from the inputs' ``data`` to those of the next graph."""
    data = dict(data)
    for step in steps:
        names = step.get("rename") or {}
        data = {names.get(name, name): entry for name, entry in data.items()}
        declared = (step.get("inputs") or {}).items()
        data |= {name: tensor["data"] for name, tensor in declared if (tensor or {}).get("data")}
    return data


def _tensor(declared: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    set_fields = {field: value for field, value in declared.items() if value is not None}
    merged = {"shape": (), "dtype": "float32", **earlier, **set_fields}
    return {"shape": list(merged["shape"]), "dtype": merged["dtype"]}


def names_in_shapes(inputs: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """List the dimensions named in shapes."""
    return {size for tensor in inputs.values() for size in tensor["shape"] if isinstance(size, str)}
