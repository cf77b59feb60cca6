"""Golden cases after a step of surgery, and further sizes at which it must keep all numbers.

Golden outputs come from the network. Where a step leaves all numbers unchanged, tensors that the
network does not return are computed by the old graph in ONNX Runtime, after a check that this graph
gives the golden outputs.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, numpy_helper

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.default_limits import effective_limits
from buildsys.manifest.problem import suggest
from buildsys.manifest.shape_cases import Dims, Inputs, allowed_sizes, concrete_shape, format_dims
from buildsys.manifest.value_ranges import INTEGER_RANGES
from buildsys.models.golden_inputs import golden_input
from buildsys.models.outputs import unmet_shape
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.models.value_cases import last_rows, value_cases
from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.onnx_file import all_nodes, gathered_rows, load_model, tensors_of
from buildsys.onnx_graphs.output_policies import compare_outputs
from buildsys.onnx_graphs.tensor_types import main_float_type
from buildsys.onnx_graphs.tensors import Array, Case, NpzFile, Tensor, nudged_tensors, tensor_of
from buildsys.stages.common.golden_check import wrong_outputs
from buildsys.stages.common.graph_runs import Limits, open_graph, random_inputs, run_case
from buildsys.stages.common.rounding_noise import is_unstable
from buildsys.stages.surgery.edits import cut_tensors
from buildsys.workers.job import Job

Step = Mapping[str, Any]
Tensors = Mapping[str, Tensor]
Cases = Mapping[str, Case]
_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_SMALL = 4096  # elements of all inputs
_MOST_SMALL, _MOST_SUGGESTED = 64, 8  # sizes of a dimension
_MOST_CONSTANTS, _LARGEST = 16, 1 << 31
_NUMBERS = (TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT)


@dataclass(frozen=True)
class GraphState:
    """A graph with its declared inputs and cases."""

    path: Path
    inputs: Inputs
    data: Mapping[str, Any]  # the manifest's, by input
    golden: Cases
    further: Cases  # for validate, not compared here


@dataclass(frozen=True)
class StepCases:
    """The cases after a step, and the new graph's expected outputs in the golden ones."""

    golden: Cases
    expected: Mapping[str, Tensors]
    further: Cases = field(default_factory=dict)
    limits: Mapping[str, float | None] | None = None  # None: those of two forms of one graph
    against: str = "the graph before it"
    warnings: tuple[str, ...] = ()


def kept_cases(job: Job, state: GraphState, step: Step) -> StepCases:
    """Carry the cases over a step that keeps all numbers: other names, input types or ends.

    Further cases are left out where the graph must compute tensors and is wrong.
    Raises: CheckFailed: the graph is wrong in a golden case.
    """
    inputs, outputs = _ends(state, step)
    cases: Cases = {**state.golden, **state.further}
    feeds, old_feeds, rounded = _cast(cases, step.get("cast") or {})
    returned = {name for case in cases.values() for name in (*case.inputs, *case.outputs)}
    unknown = [name for name in (*inputs, *outputs) if name not in returned]
    cases = _right_cases(job, state, cases) if unknown or rounded else state.golden
    source: Path | ModelProto = state.path
    if unknown:  # ONNX Runtime infers their types
        source = load_model(state.path)
        source.graph.output.extend(ValueInfoProto(name=name) for name in unknown)
    graph = open_graph(job, source)
    computed = {case: run_case(graph, case, old_feeds[case]) for case in cases}
    if not (unknown or rounded):
        computed |= {name: dict(case.outputs) for name, case in state.further.items()}
    names = step.get("rename") or {}
    carried, expected = {}, {}
    for case, tensors in computed.items():
        golden = state.golden.get(case) or state.further[case]
        values = {**tensors, **feeds[case]}
        targets = values if rounded else {**values, **golden.outputs}
        carried[case] = Case(
            {names.get(name, name): values[name] for name in inputs},
            {names.get(name, name): targets[name] for name in outputs},
            golden.float_type,
            {
                names.get(name, name): rows
                for name, rows in golden.alternatives.items()
                if name in outputs and not rounded
            },
        )
        expected[case] = {names.get(name, name): values[name] for name in outputs}
        if "cut" in step and case in job.options["cases"]:
            dims = job.options["cases"][case]["dims"]
            _check_cut_inputs(step["cut"]["inputs"] or {}, carried[case].inputs, case, dims)
    warning = (
        f"the golden inputs of {', '.join(rounded)} are not exact in the new type: they are"
        " rounded, and the graph before the step computes the outputs"
    )
    return StepCases(
        {case: carried[case] for case in state.golden},
        {case: expected[case] for case in state.golden},
        {case: tensors for case, tensors in carried.items() if case in state.further},
        warnings=(warning,) if rounded else (),
    )


def _ends(state: GraphState, step: Step) -> tuple[list[str], list[str]]:
    """List the old graph's tensors that are the ends of the new one."""
    if "cut" in step:
        return cut_tensors(load_model(state.path, external_data=False), step)
    case, ends = next(iter(state.golden.values())), []
    for side, tensors in (("inputs", case.inputs), ("outputs", case.outputs)):
        declared = tensors if step.get(side) is None else step[side]  # a hook may remove some
        if new := [name for name in declared if name not in tensors]:
            raise StageError(
                f"the values of the new {new[0]} are unknown",
                "set changes: numbers, with a reference for the outputs",
            )
        ends.append([name for name in tensors if name in declared])
    return ends[0], ends[1]


def _cast(
    cases: Cases, types: Mapping[str, str]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, Tensor]], list[str]]:
    """Convert inputs to new types; return them, the same in the old types, and rounded inputs."""
    inputs = {case: dict(tensors.inputs) for case, tensors in cases.items()}
    restored = {case: dict(tensors.inputs) for case, tensors in cases.items()}
    rounded = set()
    for case, tensors in cases.items():
        for name, dtype in types.items():
            values = converted = tensors.inputs[name].values()
            if "int" in dtype and values.dtype.kind in "fiu":
                if values.dtype.kind == "f":
                    converted = np.rint(values.astype(np.float64))
                converted = np.clip(converted, *INTEGER_RANGES[dtype])
            inputs[case][name] = tensor_of(converted, dtype)
            old_dtype = tensors.inputs[name].dtype
            restored[case][name] = tensor_of(inputs[case][name].values(), old_dtype)
            if not np.array_equal(restored[case][name].values(), values):
                rounded.add(name)
    return inputs, restored, sorted(rounded)


def _right_cases(job: Job, state: GraphState, cases: Cases) -> Cases:
    """Select the cases in which the graph gives the golden outputs, so it may compute others.

    Raises: CheckFailed: it does not in one of the shape cases.
    """
    graph, limits, right = open_graph(job, state.path), _limits(job, state), {}
    for name, case in cases.items():
        try:
            actual = run_case(graph, name, case.inputs)
            inputs, alternatives = case.inputs, case.alternatives
            compared = compare_outputs(
                actual, case.outputs, limits, inputs=inputs, alternatives=alternatives
            )
            for output, comparison in compared.items():
                if comparison.problem:
                    raise CheckFailed(
                        "the graph before this step cannot compute new golden outputs: its output"
                        f" {output} differs in case {name}:"
                        f" {comparison.sentence('it', 'the network')}",
                        "see the limits in validate",
                    )
            right[name] = case
        except StageError:
            if name in state.golden:
                raise
    return right


def _limits(job: Job, state: GraphState) -> dict[str, float | None]:
    float_type = main_float_type(load_model(state.path, external_data=False))
    return effective_limits(job.options.get("tolerance", {}), "validate", float_type)


def _check_cut_inputs(
    declared: Mapping[str, Any], inputs: Tensors, case: str, dims: Mapping[str, int]
) -> None:
    for name, port in declared.items():
        dtype, shape = inputs[name].dtype, inputs[name].shape
        differs = port["dtype"] not in (None, dtype)
        if differs or (port["shape"] and unmet_shape(shape, port["shape"], dims)):
            declares = port["dtype"] if differs else port["shape"]
            raise StageError(
                f"{name} is {dtype} {list(shape)} in case {case}, the step declares {declares}",
                "correct the step",
            )


def reference_cases(
    job: Job, state: GraphState, step: Step, outputs: Sequence[Mapping[str, Any]]
) -> StepCases:
    """Compute the cases with the reference's outputs; ``outputs`` are the new graph's."""
    golden = {}
    for case, before in state.golden.items():
        inputs = dict(before.inputs)
        if step.get("inputs") is not None:
            inputs = _new_inputs(job, before.inputs, step["inputs"], case)
        source = step["reference"]["npz"] or step["reference"]["python"]
        with reraise_as_stage_error(f"the reference {source} failed in case {case}", job.project):
            arrays = _reference_arrays(job, step["reference"], inputs, before.outputs, case)
        results = {}
        for name, dtype in ((port["name"], port["dtype"]) for port in outputs):
            if name not in arrays:
                hint = suggest(name, arrays, what="it has") or f"save an array named {case}.{name}"
                raise StageError(
                    f"the reference {source} has no output {name} in case {case}", hint
                )
            results[name] = tensor_of(arrays[name])
            if results[name].dtype != dtype and {results[name].dtype, dtype} <= _FLOATS:
                results[name] = tensor_of(arrays[name], dtype)
        golden[case] = Case(inputs, results, before.float_type)
    expected = {case: tensors.outputs for case, tensors in golden.items()}
    return StepCases(golden, expected, limits=_limits(job, state), against="the reference")


def _new_inputs(
    job: Job, before: Tensors, declared: Mapping[str, Any], case: str
) -> dict[str, Tensor]:
    """Make the declared inputs; those that fit keep their values."""
    dims, seed = job.options["cases"][case]["dims"], job.options.get("seed", 0)
    tensors = {}
    for name, port in declared.items():
        shape, dtype, data = concrete_shape(port["shape"], dims), port["dtype"], port["data"]
        earlier = before.get(name)
        if earlier and data is None and (earlier.dtype, earlier.shape) == (dtype, shape):
            tensors[name] = earlier
        else:
            tensors[name] = golden_input(
                name, shape, dtype, data, case=case, seed=seed, project=job.project
            )
    return tensors


def _reference_arrays(
    job: Job, reference: Mapping[str, Any], inputs: Tensors, outputs: Tensors, case: str
) -> Mapping[str, Array]:
    """Read a case's arrays, named ``CASE.NAME`` or, of a single case, ``NAME``; or call f.

    f takes the inputs, perhaps also the old outputs.
    """
    if file := reference["npz"]:
        arrays = dict(NpzFile(job.project / file).items())
        own = {n.removeprefix(f"{case}."): a for n, a in arrays.items() if n.startswith(f"{case}.")}
        return arrays if not own and len(job.options["cases"]) == 1 else own
    call = load_callable(reference["python"], job.project)
    arguments = [
        {name: tensor.values() for name, tensor in tensors.items()} for tensors in (inputs, outputs)
    ]
    returned = call(*arguments[: len(inspect.signature(call).parameters)])
    if not isinstance(returned, Mapping):
        problem = f"the reference {reference['python']} returned {type(returned).__name__}"
        raise StageError(problem, "return a dict of output names to arrays")
    return {str(name): np.asarray(value) for name, value in returned.items()}


def compare_further(
    job: Job, state: GraphState, after: GraphState, golden: Tensors, limits: Limits
) -> None:
    """Compare two graphs at further sizes and special values, where a step keeps all numbers.

    A graph can be wrong at one size or value only, and the graph before is right at any. Small
    inputs are compared at all sizes, others at those that the step's constants suggest.
    Raises: CheckFailed: they differ in one, by more than rounding.
    """
    old_graph, new_graph = open_graph(job, state.path), open_graph(job, after.path)
    rows = gathered_rows(load_model(state.path, external_data=False))

    def expected(feeds: Tensors) -> Tensors:
        try:
            outputs = old_graph.run(feeds)
        except StageError:  # the graph before it refuses them
            return {}
        return {} if any(tensor.non_finite() for tensor in outputs.values()) else outputs

    def compare(feeds: Tensors, outputs: Tensors, place: str) -> ComparedCase:
        actual = run_case(new_graph, place, feeds)
        compared = compare_outputs(actual, outputs, limits, inputs=feeds)
        return ComparedCase(feeds, outputs, actual, compared)

    def check(feeds: Tensors, place: str) -> None:
        if not (outputs := expected(feeds)):
            return
        checked = compare(feeds, outputs, place)

        def nudged(draw: int) -> ComparedCase:
            return compare(nudged_tensors(feeds, draw), checked.actual, place)

        wrong = wrong_outputs(checked)
        if not wrong or is_unstable(checked, nudged, limits["rtol"]):
            return
        output, comparison = next(iter(wrong.items()))
        sentence = comparison.sentence("the graph after it", "the graph before")
        problem = f"it changed {output} {place}: {sentence}"
        raise CheckFailed(problem, "correct the step, or narrow dims or inputs.NAME.data")

    sizes = list(_other_sizes(job, after.inputs, _constants(after.path) - _constants(state.path)))
    for number, dims in enumerate(sizes):
        job.count(number, len(sizes), "sizes")
        check(random_inputs(after.inputs, format_dims(dims), dims), f"at {format_dims(dims)}")
    for name, feeds in value_cases(golden, after.data):
        check(feeds, f"in case {name}")
    if last := last_rows(golden, after.data, rows, lambda feeds: bool(expected(feeds))):
        check(last, "in case last-rows")


def _other_sizes(job: Job, inputs: Inputs, constants: Iterable[int]) -> Iterator[Dims]:
    """Yield new sizes of each dimension, with the others at their minimum."""
    spans: Mapping[str, Mapping[str, int]] = job.options.get("spans", {})
    golden_sizes = [case["dims"] for case in job.options["cases"].values()]
    numbers = sorted(constants)[:_MOST_CONSTANTS]
    # where a comparison with a constant, or with a remainder, may change
    suggested = [size for n in numbers for size in (n, n + 1, n - 1, *(n + m for m in numbers))]
    least = {**golden_sizes[0], **{name: span["min"] for name, span in spans.items()}}
    for name, span in spans.items():
        allowed = allowed_sizes(span)
        near = [size for size in dict.fromkeys(suggested) if size in allowed][:_MOST_SUGGESTED]
        for size in dict.fromkeys((*near, *allowed[:_MOST_SMALL])):
            dims = {**least, name: size}
            shapes = (concrete_shape(tensor["shape"], dims) for tensor in inputs.values())
            is_small = sum(map(prod, shapes)) <= _SMALL
            if dims not in golden_sizes and (is_small or size in near):
                yield dims


def _constants(path: Path) -> set[int]:
    """List the single integers above 1 in a graph and its functions."""
    model, values = load_model(path, external_data=False), list[float]()
    for tensor in tensors_of(model):
        if prod(tensor.dims) == 1 and tensor.data_type in _NUMBERS:
            values.append(float(numpy_helper.to_array(tensor).item()))
    for body in (model.graph, *model.functions):
        for node in all_nodes(body):
            values += [a.i for a in node.attribute if a.name == "value_int"]
            values += [n for a in node.attribute if a.name == "value_ints" for n in a.ints]
    return {int(value) for value in values if 1 < value < _LARGEST and value == int(value)}
