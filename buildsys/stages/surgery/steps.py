"""One step of surgery: edit, write, check and compare a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper, shape_inference

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import Dims, concrete_shape, format_dims
from buildsys.manifest.surgery_interface import Inputs, Interface, interface_after, kind_of
from buildsys.onnx_graphs.onnx_file import (
    all_nodes,
    check_file,
    interface,
    interface_changes,
    load_model,
    operator_counts,
    ports,
    save_model,
    tensors_of,
)
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.onnx_graphs.result_types import CheckFailure
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import Case
from buildsys.stages.common.equivalence import (
    Limits,
    compare_cases,
    limits_of,
    random_inputs,
    random_operators,
    refuse_random_graph,
    run_cases,
)
from buildsys.stages.operators.open_graph import open_graph
from buildsys.stages.surgery import edits, golden_cases
from buildsys.stages.surgery.edits import replace_messages
from buildsys.stages.surgery.golden_cases import GraphState, Step, StepCases, Tensors
from buildsys.stages.surgery.result import SurgeryStep
from buildsys.workers.job import Job

_INTERFACE_KEEPING = ("function", "replace")
_ONNX_DOMAINS = ("", "ai.onnx", "ai.onnx.ml")


@dataclass(frozen=True)
class StepResult:
    """A completed step: the new graph and its differences."""

    figures: SurgeryStep
    state: GraphState
    expected: Mapping[str, Tensors]
    differences: Sequence[tuple[str, str, Comparison]]  # case, output
    warnings: tuple[str, ...]
    hint: str  # for a difference


def describe_step(step: Step) -> str:
    """Return e.g. ``rename x → image``."""
    kind = kind_of(step)
    value = step[kind]
    if kind == "cut":
        sides = {side: value[side] for side in ("inputs", "outputs") if value[side] is not None}
        return "cut " + ", ".join(f"{side} {', '.join(names)}" for side, names in sides.items())
    if kind == "replace":
        return f"replace {value['op']} by {value['function']}"
    if kind == "function":
        return f"function {value}"
    return f"{kind} " + ", ".join(f"{old} → {new}" for old, new in value.items())


def apply_step(job: Job, step: Step, state: GraphState, path: Path) -> StepResult:
    """Apply one step and write its graph to ``path``.

    The result holds its differences, if any.

    Raises: StageError: it does not fit the graph. CheckFailed: the new graph is invalid or random,
        or has another interface.
    """
    before = load_model(state.path)
    counts, limits, old_interface = operator_counts(before), limits_of(before), interface(before)
    outputs = load_model(state.path, external_data=False).graph.output
    inputs = interface_after(Interface(dict(state.inputs), None), [step]).inputs
    cut_cases = golden_cases.cut_cases(job, state, step) if "cut" in step else None
    if cut_cases:
        shapes = {name: tensor["shape"] for name, tensor in inputs.items()}
        case = next(iter(cut_cases.golden.values()))
        tensors = {**case.inputs, **case.outputs}
        kinds = {name: (tensor.dtype, len(tensor.shape)) for name, tensor in tensors.items()}
        edited = edits.cut(before, step, shapes, kinds)
    else:
        actions = {
            "function": lambda: edits.call_hook(before, step, job.project),
            "replace": lambda: edits.replace(before, step, job.project),
            "rename": lambda: edits.rename(before, step),
            "fix_dims": lambda: edits.fix_dims(before, step, state.inputs),
            "cast": lambda: edits.cast(before, step),
        }
        edited = actions[kind_of(step)]()
    after = _write_checked(edited, path, outputs)
    _check_interface(step, old_interface, interface(after))
    cases = cut_cases or _step_cases(job, step, state, after)
    feeds = {case: tensors.inputs for case, tensors in cases.golden.items()}
    actual = run_cases(job, path, feeds)
    compared = compare_cases(actual, cases.expected, cases.limits or limits, feeds)
    differences = [
        (case, name, comparison)
        for case, comparisons in compared.items()
        for name, comparison in comparisons.items()
        if comparison.problem
    ]
    now, random = operator_counts(after), random_operators(counts)
    keeps_ports = step.get("inputs") is None and step.get("outputs") is None
    if step.get("changes") == "nothing" and keeps_ports and not random and not differences:
        compare_other_sizes(job, inputs, state.path, path, limits)
    if random or differences:
        first = next(iter(state.golden.values())).inputs
        refuse_random_graph(job, state.path, "the graph before it", first, limits, random)
    hint = ""
    if step.get("changes") == "nothing":
        hint = "if this is intended, set changes: numbers and a reference"
    figures = SurgeryStep(
        step=describe_step(step),
        removed={op: n - now.get(op, 0) for op, n in counts.items() if n > now.get(op, 0)},
        added={op: n - counts.get(op, 0) for op, n in now.items() if n > counts.get(op, 0)},
        nodes=sum(now.values()),
        against=cases.against,
        basis=cases.basis,
        cases={
            case: {name: comparison.figures() for name, comparison in comparisons.items()}
            for case, comparisons in compared.items()
        },
        failures=[
            cast(CheckFailure, {"case": case, "output": name, **comparison.failure()})
            for case, name, comparison in differences
        ],
    )
    new_state = GraphState(path, inputs, cases.golden, actual, _carried(job, step, state, after))
    return StepResult(figures, new_state, cases.expected, differences, cases.warnings, hint)


def _step_cases(job: Job, step: Step, state: GraphState, after: ModelProto) -> StepCases:
    outputs, kind = ports(after)[1], kind_of(step)
    if step.get("reference") is not None:
        return golden_cases.reference_cases(job, state, step, outputs)
    if kind == "cast":
        return golden_cases.cast_cases(job, state, step)
    if kind == "function":
        return golden_cases.declared_cases(state, step)
    if kind == "rename":
        return golden_cases.renamed_cases(state, step)
    return StepCases(state.golden, state.computed)


def _carried(job: Job, step: Step, state: GraphState, after: ModelProto) -> dict[str, Case]:
    """Carry the further cases over a step.

    Those with unknown outputs are left out; ``validate`` compares them in the graph before surgery.
    """
    carried = {}
    for name, case in state.further.items():
        alone = replace(state, golden={name: case}, computed={name: case.outputs})
        with suppress(StageError):
            if kind_of(step) in ("cast", "cut"):  # the graph may have to compute outputs
                computed = run_cases(job, state.path, {name: case.inputs})
                alone = replace(alone, computed=computed)
            if "cut" in step:
                cases = golden_cases.cut_cases(job, alone, step)
            else:
                cases = _step_cases(job, step, alone, after)
            carried[name] = replace(cases.golden[name], float_type=case.float_type)
    return carried


def _check_interface(step: Step, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raise CheckFailed for undeclared changes of inputs or outputs."""
    if kind_of(step) not in _INTERFACE_KEEPING:
        return
    expected = {side: _declared_ports(step, side, before, after) for side in ("input", "output")}
    same_opset: dict[str, Any] = {"opset": {}}  # may change: callers of the graph do not see it
    changed = next(interface_changes({**expected, **same_opset}, {**after, **same_opset}), None)
    if changed:
        hint = "declare new inputs and outputs in the step" if "function" in step else ""
        raise CheckFailed(f"it changed the interface of the graph: {changed}", hint)
    new = [
        port["name"]
        for side, declared in expected.items()
        for port in declared
        if port["name"] not in {old["name"] for old in before[side]}
    ]
    if new and step["changes"] == "nothing":
        raise StageError(
            f"the values of the new {new[0]} are unknown",
            "set changes: numbers, with a reference for the outputs",
        )


def _declared_ports(
    step: Step, side: str, before: dict[str, Any], after: dict[str, Any]
) -> list[dict[str, Any]]:
    """Complete the declared ports of one side from the new graph."""
    declared = step.get(f"{side}s")
    if declared is None:
        unchanged: list[dict[str, Any]] = before[side]
        return unchanged
    ports_by_name = {port["name"]: port for port in after[side]}
    result = []
    for name, tensor in declared.items():
        port, shape = ports_by_name.get(name, {}), tensor["shape"]
        shape = port.get("shape") if shape is None else shape
        result.append({"name": name, "dtype": tensor["dtype"] or port.get("dtype"), "shape": shape})
    return result


def _write_checked(model: ModelProto, path: Path, before: Sequence[ValueInfoProto]) -> ModelProto:
    """Write ``model`` with fresh shapes; return it without external data.

    Inner shapes are inferred again, as old ones may be wrong; only outputs of custom operators keep
    theirs, which cannot be inferred. An output without a shape gets the one it had ``before``.
    Opsets of unused domains are removed: graphsurgeon leaves them.
    Raises: CheckFailed: the graph is invalid.
    """
    graph = model.graph
    functions = {(function.domain, function.name) for function in model.functions}
    custom = {
        name
        for node in graph.node
        if node.domain not in _ONNX_DOMAINS and (node.domain, node.op_type) not in functions
        for name in node.output
    }
    replace_messages(graph.value_info, [v for v in graph.value_info if v.name in custom])
    used = {"", "ai.onnx", *(node.domain for node in all_nodes(graph))}
    for function in model.functions:
        used |= {function.domain, *(node.domain for node in function.node)}
    replace_messages(model.opset_import, [e for e in model.opset_import if e.domain in used])
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(model, path)
    written = load_model(path, external_data=False)
    # the checker reports the reason of a failure
    with suppress(shape_inference.InferenceError, ValueError, RuntimeError):
        written = shape_inference.infer_shapes(written, data_prop=True)
    old_types = {value.name: value.type for value in before}
    for value in written.graph.output:
        if value.name in old_types and not value.type.tensor_type.HasField("shape"):
            old = old_types[value.name]
            if value.type.tensor_type.elem_type in (0, old.tensor_type.elem_type):
                value.type.CopyFrom(old)
    save_model(written, path)
    try:
        check_file(path, "the graph")
    except StageError as error:
        raise CheckFailed(error.problem, error.hint) from error
    return written


Spans = Mapping[str, Mapping[str, int]]  # dimension -> min, max, multiple_of
_SMALL = 4096  # elements of all inputs
_MOST_SMALL, _MOST_LARGE = 64, 8  # sizes of a dimension
_MOST_CONSTANTS, _LARGEST = 16, 1 << 31
_NUMBERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)


def compare_other_sizes(
    job: Job, inputs: Inputs, before: Path, after: Path, limits: Limits
) -> None:
    """Compare two graphs at further sizes, where a step keeps all numbers.

    A graph can be wrong at one size only, and the graph before is right at any. Small inputs are
    compared at all sizes, others at those that the step's constants suggest.
    Raises: CheckFailed: they differ at one.
    """
    spans: Spans = job.options.get("spans", {})
    golden_sizes = [case["dims"] for case in job.options["cases"].values()]
    sizes = list(_sizes(inputs, spans, golden_sizes, _new_constants(before, after)))
    if not sizes:
        return
    graphs = {path: open_graph(job, path) for path in (before, after)}
    for number, dims in enumerate(sizes):
        job.count(number, len(sizes), "sizes")
        feeds = random_inputs(inputs, format_dims(dims), dims)
        try:
            expected = graphs[before].run(feeds)
        except StageError:  # the graph before it refuses the size
            continue
        where = f"at {format_dims(dims)}"
        try:
            actual = graphs[after].run(feeds)
        except StageError as error:
            raise CheckFailed(
                f"its graph cannot run {where}: {error.problem}", error.hint
            ) from error
        compared = compare_outputs(actual, expected, limits, inputs=feeds)
        for output, comparison in compared.items():
            if not comparison.passed:
                sentence = comparison.sentence("the graph after it", "the graph before")
                raise CheckFailed(f"it changed {output} {where}: {sentence}")


def _sizes(
    inputs: Inputs, spans: Spans, known: Iterable[Dims], constants: Iterable[int]
) -> Iterator[Dims]:
    """Yield new sizes of each dimension, with the others at their minimum."""
    tested = list(known)
    least = {**tested[0], **{name: span["min"] for name, span in spans.items()}}
    for name, span in spans.items():
        allowed = range(span["min"], span["max"] + 1, span["multiple_of"] or 1)
        near = _near(constants, allowed)[:_MOST_LARGE]
        for size in dict.fromkeys((*near, *allowed[:_MOST_SMALL])):
            dims = {**least, name: size}
            shapes = (concrete_shape(tensor["shape"], dims) for tensor in inputs.values())
            is_small = sum(map(prod, shapes)) <= _SMALL
            if dims not in tested and (is_small or size in near):
                tested.append(dims)
                yield dims


def _near(constants: Iterable[int], allowed: range) -> list[int]:
    """List sizes at which a comparison with a constant, or a remainder, may change."""
    numbers = sorted(constants)[:_MOST_CONSTANTS]
    candidates = [size for n in numbers for size in (n, n + 1, n - 1)]
    for divisor in numbers:
        first = allowed[: min(divisor, _MOST_SMALL)]
        candidates += [n for rest in (0, *numbers) for n in first if n % divisor == rest]
    return [size for size in dict.fromkeys(candidates) if size in allowed]


def _new_constants(before: Path, after: Path) -> set[int]:
    """List the integers above 1 that only the second graph contains."""
    models = (load_model(path, external_data=False) for path in (before, after))
    old, new = (set(_constants(model)) for model in models)
    return new - old


def _constants(model: ModelProto) -> Iterator[int]:
    values: list[float] = []
    for tensor in tensors_of(model):
        if prod(tensor.dims) == 1 and tensor.data_type in _NUMBERS:
            values += [float(numpy_helper.to_array(tensor).item())]
    bodies = (model.graph, *model.functions)
    for node in (node for body in bodies for node in all_nodes(body)):
        values += [a.i for a in node.attribute if a.name == "value_int"]
        values += [n for a in node.attribute if a.name == "value_ints" for n in a.ints]
    yield from (int(value) for value in values if 1 < value < _LARGEST and value == int(value))
