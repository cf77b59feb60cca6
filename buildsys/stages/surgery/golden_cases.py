"""Golden cases after a step of surgery.

Golden outputs come from the network. Where a step leaves all numbers unchanged (rename, cast, cut),
tensors that the network does not return are computed by the old graph in ONNX Runtime, after a
check that this graph gives the golden outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.default_limits import effective_limits
from buildsys.manifest.problem import suggest
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.manifest.surgery_interface import Inputs
from buildsys.manifest.value_ranges import INTEGER_RANGES
from buildsys.models.golden_inputs import golden_input
from buildsys.models.user_code import load_callable, reraise_as_stage_error, with_article
from buildsys.onnx_graphs.onnx_file import load_model, save_model
from buildsys.onnx_graphs.tensor_types import main_float_type
from buildsys.onnx_graphs.tensors import Array, Case, NpzFile, Tensor, tensor_of
from buildsys.stages.common.equivalence import compare_cases, run_cases
from buildsys.stages.surgery.edits import add_outputs, cut_tensors
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


def declared_cases(state: GraphState, step: Step) -> StepCases:
    """Select the cases without ports removed by a hook."""

    def select(tensors: Tensors, side: str) -> dict[str, Tensor]:
        names = step.get(side)
        chosen = tensors if names is None else [name for name in names if name in tensors]
        return {name: tensors[name] for name in chosen}

    return _relabelled(state, select)


def renamed_cases(state: GraphState, step: Step) -> StepCases:
    """Rename the tensors of the cases."""
    names = step["rename"]
    return _relabelled(state, lambda found, _: {names.get(n, n): t for n, t in found.items()})


def _relabelled(
    state: GraphState, relabel: Callable[[Tensors, str], Mapping[str, Tensor]]
) -> StepCases:
    golden = {
        case: Case(relabel(tensors.inputs, "inputs"), relabel(tensors.outputs, "outputs"))
        for case, tensors in state.golden.items()
    }
    return StepCases(golden, {case: relabel(t, "outputs") for case, t in state.computed.items()})


def cast_cases(job: Job, state: GraphState, step: Step) -> StepCases:
    """Convert the cases to inputs of the new types.

    If values change in the conversion, the outputs are computed again.
    """
    inputs: dict[str, dict[str, Tensor]] = {}
    restored: dict[str, dict[str, Tensor]] = {}  # in the old type again
    lossy: dict[str, str] = {}
    for case, tensors in state.golden.items():
        inputs[case], restored[case] = dict(tensors.inputs), dict(tensors.inputs)
        for name, dtype in step["cast"].items():
            old, values = tensors.inputs[name], tensors.inputs[name].values()
            converted = values
            if "int" in dtype and values.dtype.kind in "fiu":
                if values.dtype.kind == "f":
                    converted = np.rint(values.astype(np.float64))
                converted = np.clip(converted, *INTEGER_RANGES[dtype])
            inputs[case][name] = tensor_of(converted, dtype)
            restored[case][name] = tensor_of(inputs[case][name].values(), old.dtype)
            if not np.array_equal(restored[case][name].values(), values):
                lossy[name] = dtype
    if not lossy:
        golden = {
            case: Case(inputs[case], tensors.outputs) for case, tensors in state.golden.items()
        }
        return StepCases(golden, state.computed)
    basis = _require_golden(job, state)
    expected = run_cases(job, state.path, restored)
    changed = ", ".join(f"{name} are not exact in {dtype}" for name, dtype in lossy.items())
    warning = (
        f"the golden inputs of {changed}: they are rounded, and the graph before the step computes"
        " the outputs"
    )
    golden = {case: Case(inputs[case], expected[case]) for case in inputs}
    return StepCases(golden, expected, warnings=(warning,), basis=basis)


def cut_cases(job: Job, state: GraphState, step: Step) -> StepCases:
    """Compute the cases of a cut, if necessary from the old graph."""
    model = load_model(state.path)
    inputs, outputs = cut_tensors(model, step)
    golden_names = {
        name for case in state.golden.values() for name in (*case.inputs, *case.outputs)
    }
    computed, basis = dict(state.computed), None
    unknown = [name for name in (*inputs, *outputs) if name not in golden_names]
    if unknown:
        basis = _require_golden(job, state)
        with TemporaryDirectory(dir=job.outputs["model"].parent) as folder:
            probe = Path(folder) / "model.onnx"
            save_model(add_outputs(model, unknown), probe)
            feeds = {case: tensors.inputs for case, tensors in state.golden.items()}
            computed = dict(run_cases(job, probe, feeds))
    golden, expected = {}, {}
    for case, tensors in state.golden.items():
        tensors_of_case = {**computed[case], **tensors.inputs}
        cut_inputs = {name: tensors_of_case[name] for name in inputs}
        for name, declared in (step["cut"]["inputs"] or {}).items():
            tensor, shape = cut_inputs[name], declared["shape"]
            if declared["dtype"] not in (None, tensor.dtype):
                raise StageError(
                    f"{name} is {tensor.dtype} in the graph, the step declares {declared['dtype']}",
                    "correct the dtype in the step",
                )
            if shape is None or case in state.further:
                continue
            expected_sizes = concrete_shape(shape, job.options["cases"][case]["dims"])
            if expected_sizes != tensor.shape:
                raise StageError(
                    f"{name} has the shape {list(tensor.shape)} in case {case}, the step declares"
                    f" {shape} ({list(expected_sizes)})",
                    "correct the shape in the step",
                )
        expected[case] = {name: tensors_of_case[name] for name in outputs}
        golden[case] = Case(
            cut_inputs, {name: tensors.outputs.get(name, tensors_of_case[name]) for name in outputs}
        )
    return StepCases(golden, expected, basis=basis)


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
    for case, outputs in compared.items():
        for name, comparison in outputs.items():
            if comparison.problem:
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
    source = step["reference"]["npz"] or step["reference"]["python"]
    for case, before in state.golden.items():
        inputs = _inputs(job, before, step, case)
        names = {port["name"] for port in outputs}
        arrays = _arrays(job, step["reference"], inputs, before, case, names)
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
    limits = _limits(job, state)
    return StepCases(golden, expected, limits=limits, against="the reference")


def _inputs(job: Job, before: Case, step: Step, case: str) -> dict[str, Tensor]:
    dims = job.options["cases"][case]["dims"]
    inputs: dict[str, Tensor] = dict(before.inputs)
    declared = step.get("inputs")
    if declared is None:
        return inputs
    tensors, seed = {}, job.options.get("seed", 0)
    for name, port in declared.items():
        shape, dtype, data = concrete_shape(port["shape"], dims), port["dtype"], port["data"]
        earlier = inputs.get(name)
        if (
            earlier is not None
            and data is None
            and (earlier.dtype, earlier.shape) == (dtype, shape)
        ):
            tensors[name] = earlier
        else:
            tensors[name] = golden_input(
                name, shape, dtype, data, case=case, seed=seed, project=job.project
            )
    return tensors


def _arrays(
    job: Job,
    reference: Mapping[str, Any],
    inputs: Tensors,
    before: Case,
    case: str,
    outputs: Collection[str],
) -> Mapping[str, Array]:
    """Read a case's arrays from code or a file.

    They are named ``CASE.NAME`` there, or ``NAME`` for a single case. Of a file's arrays only those
    in ``outputs`` are read, the others are empty.
    """
    if (file := reference["npz"]) is not None:
        try:
            arrays = NpzFile(job.project / file)
            prefix = f"{case}."
            own = {name.removeprefix(prefix): name for name in arrays if name.startswith(prefix)}
            if not own and len(job.options["cases"]) == 1:
                own = {name: name for name in arrays}
            unread = np.empty(0)
            return {o: arrays[name] if o in outputs else unread for o, name in own.items()}
        except (OSError, ValueError) as error:
            raise StageError(
                f"the reference {file} cannot be read as an .npz file: {error}",
                "save it with numpy.savez",
            ) from error
    name = reference["python"]
    call = load_callable(name, job.project)
    arguments: list[dict[str, Array]] = [{key: tensor.values() for key, tensor in inputs.items()}]
    try:  # the old outputs as well, for references that only modify these
        inspect.signature(call).bind(None, None)
        arguments.append({key: tensor.values() for key, tensor in before.outputs.items()})
    except (TypeError, ValueError):
        pass
    with reraise_as_stage_error(f"the reference {name} failed in case {case}", job.project):
        returned = call(*arguments)
    if not isinstance(returned, Mapping):
        kind = "nothing" if returned is None else with_article(type(returned).__name__)
        raise StageError(
            f"the reference {name} returned {kind}; expected a dict of output names to arrays",
            "return a dict of output names to arrays",
        )
    return {str(key): np.asarray(value) for key, value in returned.items()}
