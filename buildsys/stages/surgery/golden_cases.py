"""Golden cases after a step of surgery.

Golden outputs come from the network. Where a step leaves all numbers unchanged, tensors that the
network does not return are computed by the old graph in ONNX Runtime, after a check that this graph
gives the golden outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ValueInfoProto

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.default_limits import effective_limits
from buildsys.manifest.problem import suggest
from buildsys.manifest.shape_cases import Inputs, concrete_shape
from buildsys.manifest.value_ranges import INTEGER_RANGES
from buildsys.models.golden_inputs import golden_input
from buildsys.models.user_code import load_callable, reraise_as_stage_error, with_article
from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.tensor_types import main_float_type
from buildsys.onnx_graphs.tensors import Array, Case, NpzFile, Tensor, tensor_of
from buildsys.stages.common.equivalence import compare_cases, differences, open_graph, run_case
from buildsys.stages.surgery.edits import cut_tensors, output_names
from buildsys.workers.job import Job

Step = Mapping[str, Any]
Tensors = Mapping[str, Tensor]
Port = Mapping[str, Any]  # name, dtype and shape in a graph
_FLOATS = {"float16", "bfloat16", "float32", "float64"}


@dataclass(frozen=True)
class GraphState:
    """A graph with its declared inputs, golden cases and computed outputs."""

    path: Path
    inputs: Inputs
    golden: Mapping[str, Case]
    computed: Mapping[str, Tensors]
    further: Mapping[str, Case] = field(default_factory=dict)  # for validate, not compared here


@dataclass(frozen=True)
class StepCases:
    """The golden cases after a step, and the new graph's expected outputs."""

    golden: Mapping[str, Case]
    expected: Mapping[str, Tensors]
    limits: Mapping[str, float | None] | None = None  # None: those of two forms of one graph
    against: str = "the graph before it"
    warnings: tuple[str, ...] = ()
    basis: float | None = None  # relative error of the old graph, if it computed golden outputs


def kept_cases(job: Job, state: GraphState, step: Step) -> StepCases:
    """Carry the cases over a step that keeps all numbers: other names, input types or ends."""
    inputs, outputs = _ends(state, step)
    names = step.get("rename") or {}
    feeds, old_feeds, lossy = _cast(state.golden, step.get("cast") or {})
    returned = {n for case in state.golden.values() for n in (*case.inputs, *case.outputs)}
    unknown = [name for name in (*inputs, *outputs) if name not in returned]
    computed, basis, warnings = state.computed, None, tuple[str, ...]()
    if unknown or lossy:
        basis = _require_golden(job, state)
        computed = _run_with_outputs(job, state.path, unknown, old_feeds)
    if lossy:
        warnings = (
            f"the golden inputs of {', '.join(sorted(lossy))} are not exact in the new type: they"
            " are rounded, and the graph before the step computes the outputs",
        )
    golden, expected = {}, {}
    for case, tensors in state.golden.items():
        graph_values = {**computed[case], **feeds[case]}
        values = graph_values if lossy else {**graph_values, **tensors.outputs}
        golden[case] = Case(
            {names.get(name, name): graph_values[name] for name in inputs},
            {names.get(name, name): values[name] for name in outputs},
        )
        expected[case] = {names.get(name, name): graph_values[name] for name in outputs}
        if "cut" in step:
            dims = job.options["cases"].get(case, {}).get("dims")
            _check_cut_inputs(step["cut"]["inputs"] or {}, golden[case].inputs, case, dims)
    return StepCases(golden, expected, warnings=warnings, basis=basis)


def _ends(state: GraphState, step: Step) -> tuple[list[str], list[str]]:
    """List the old graph's tensors that are the ends of the new one."""
    if "cut" in step:
        return cut_tensors(load_model(state.path, external_data=False), step)
    case = next(iter(state.golden.values()))
    inputs, outputs = (
        [name for name in tensors if step.get(side) is None or name in step[side]]
        for side, tensors in (("inputs", case.inputs), ("outputs", case.outputs))
    )  # a hook may remove some
    return inputs, outputs


def _cast(
    golden: Mapping[str, Case], types: Mapping[str, str]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, dict[str, Tensor]], set[str]]:
    """Convert inputs to new types; return them, the same in the old types, and inexact inputs."""
    inputs = {case: dict(tensors.inputs) for case, tensors in golden.items()}
    restored = {case: dict(tensors.inputs) for case, tensors in golden.items()}
    lossy = set()
    for case, tensors in golden.items():
        for name, dtype in types.items():
            values = tensors.inputs[name].values()
            converted = values
            if "int" in dtype and values.dtype.kind in "fiu":
                if values.dtype.kind == "f":
                    converted = np.rint(values.astype(np.float64))
                converted = np.clip(converted, *INTEGER_RANGES[dtype])
            inputs[case][name] = tensor_of(converted, dtype)
            old_dtype = tensors.inputs[name].dtype
            restored[case][name] = tensor_of(inputs[case][name].values(), old_dtype)
            if not np.array_equal(restored[case][name].values(), values):
                lossy.add(name)
    return inputs, restored, lossy


def _run_with_outputs(
    job: Job, path: Path, names: Iterable[str], feeds: Mapping[str, Tensors]
) -> Mapping[str, Tensors]:
    """Run a graph with further outputs; ONNX Runtime infers their types."""
    model = load_model(path)
    present = output_names(model)
    model.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in present)
    graph = open_graph(job, model)
    return {case: run_case(graph, case, inputs) for case, inputs in feeds.items()}


def _check_cut_inputs(
    declared: Mapping[str, Port], inputs: Tensors, case: str, dims: Mapping[str, int] | None
) -> None:
    for name, port in declared.items():
        dtype, shape = inputs[name].dtype, inputs[name].shape
        declares = ""
        if port["dtype"] not in (None, dtype):
            declares = port["dtype"]
        elif port["shape"] and dims is not None and concrete_shape(port["shape"], dims) != shape:
            declares = str(port["shape"])
        if declares:
            raise StageError(
                f"{name} is {dtype} {list(shape)} in case {case}, the step declares {declares}",
                "correct the step",
            )


def _limits(job: Job, state: GraphState) -> dict[str, float | None]:
    float_type = main_float_type(load_model(state.path, external_data=False))
    return effective_limits(job.options.get("tolerance", {}), "validate", float_type)


def _require_golden(job: Job, state: GraphState) -> float:
    """Check the graph's outputs before it computes others; return its worst error.

    Raises: CheckFailed: they differ from the golden ones.
    """
    golden = {case: tensors.outputs for case, tensors in state.golden.items()}
    feeds = {case: tensors.inputs for case, tensors in state.golden.items()}
    compared = compare_cases(state.computed, golden, _limits(job, state), feeds)
    for case, name, comparison in differences(compared):
        raise CheckFailed(
            "the graph before this step cannot compute new golden outputs: its output"
            f" {name} differs in case {case}: {comparison.sentence('it', 'the network')}",
            "see the limits in validate",
        )
    return max(
        comparison.relative for outputs in compared.values() for comparison in outputs.values()
    )


def reference_cases(job: Job, state: GraphState, step: Step, outputs: Sequence[Port]) -> StepCases:
    """Compute the cases with the reference's outputs; ``outputs`` are the new graph's."""
    golden = {}
    for case, before in state.golden.items():
        inputs = dict(before.inputs)
        if step.get("inputs") is not None:
            inputs = _new_inputs(job, before.inputs, step["inputs"], case)
        if source := step["reference"]["npz"]:
            arrays = _stored_arrays(job, source, case)
        else:
            source = step["reference"]["python"]
            arrays = _call_reference(job, source, inputs, before.outputs, case)
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
        golden[case] = Case(inputs, results)
    expected = {case: tensors.outputs for case, tensors in golden.items()}
    return StepCases(golden, expected, limits=_limits(job, state), against="the reference")


def _new_inputs(
    job: Job, before: Tensors, declared: Mapping[str, Port], case: str
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


def _stored_arrays(job: Job, file: str, case: str) -> Mapping[str, Array]:
    """Read a case's arrays, named ``CASE.NAME``, or ``NAME`` for a single case."""
    try:
        arrays = dict(NpzFile(job.project / file).items())
    except (OSError, ValueError) as error:
        raise StageError(
            f"the reference {file} cannot be read as an .npz file: {error}",
            "save it with numpy.savez",
        ) from error
    own = {n.removeprefix(f"{case}."): a for n, a in arrays.items() if n.startswith(f"{case}.")}
    return arrays if not own and len(job.options["cases"]) == 1 else own


def _call_reference(
    job: Job, reference: str, inputs: Tensors, outputs: Tensors, case: str
) -> Mapping[str, Array]:
    """Call a reference with the inputs, and the old outputs if it takes them."""
    call = load_callable(reference, job.project)
    arguments = [
        {name: tensor.values() for name, tensor in tensors.items()} for tensors in (inputs, outputs)
    ]
    with suppress(ValueError):  # a callable written in C has no signature
        arguments = arguments[: len(inspect.signature(call).parameters)]
    with reraise_as_stage_error(f"the reference {reference} failed in case {case}", job.project):
        returned = call(*arguments)
    if not isinstance(returned, Mapping):
        kind = "nothing" if returned is None else with_article(type(returned).__name__)
        raise StageError(
            f"the reference {reference} returned {kind}; expected a dict of output names to arrays",
            "return a dict of output names to arrays",
        )
    return {str(name): np.asarray(value) for name, value in returned.items()}
