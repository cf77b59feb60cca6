"""Graphs in ONNX Runtime: run on cases, and compared with golden outputs or with each other."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from buildsys.backends.onnxruntime.graphs import schema_versions
from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.errors import StageError
from buildsys.manifest.exports import OTHER_EXPORTS
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.onnx_graphs.agreement import ComparedCase
from buildsys.onnx_graphs.onnx_file import dtype_name, load_model, nodes_of, save_model
from buildsys.onnx_graphs.output_policies import Policy
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensor_types import emulate, float_types, narrowest_float
from buildsys.onnx_graphs.tensors import BITS, Case, Tensor, nudged_tensors, tensor_of
from buildsys.stages.common.difference_hints import SIZE_HINT
from buildsys.stages.common.golden_check import (
    OutputRules,
    compare_case,
    golden_limits,
    output_rules,
)
from buildsys.stages.common.remedies import OnnxOperator, format_remedies, refusal_remedies
from buildsys.stages.common.rounding_noise import excuse_noise, is_unstable
from buildsys.stages.operators.implementation import Implementation, implementation_of
from buildsys.stages.operators.local_functions import OF_PYTORCH, operator_of, pytorch_operators
from buildsys.workers.job import Job

Tensors = Mapping[str, Tensor]
Limits = Mapping[str, float]

_SMALL = 8  # elements
# Both graphs run in one runtime on the same inputs, so only the order of additions may differ: far
# less than between two frameworks. The narrowest float type of the graph decides.
_LIMITS: Mapping[str, Limits] = {
    "float32": {"rtol": 1e-5, "cosine": 0.99999},
    "float16": {"rtol": 1e-2, "cosine": 0.9999},
    "bfloat16": {"rtol": 5e-2, "cosine": 0.999},
}


def limits_of(model: ModelProto) -> Limits:
    """Choose the tolerance between two equivalent forms of a graph."""
    return _LIMITS.get(narrowest_float(model), _LIMITS["float32"])


def open_graph(job: Job, graph: Path | ModelProto) -> OrtGraph:
    """Load a graph with the job's custom operators; a model may change.

    ONNX Runtime's optimizations are off, so each node is computed as the file says. A fusion could
    hide differences that other runtimes show, and a faulty one would be blamed on the graph; the
    optimized graph is checked when an ONNX Runtime engine is verified. A bfloat16 graph without
    kernels is emulated in float32, with every result rounded.

    Raises: StageError: ONNX Runtime refuses it, e.g. for an operator without an implementation.
    """
    implementation = implementation_of(job)
    options = session_options(optimization="disable", intra_op_threads=job.threads, few_runs=True)
    with TemporaryDirectory(dir=job.outputs["result"].parent) as folder:
        if isinstance(graph, Path):
            file = implementation.graph(graph, Path(folder))
        else:  # by path: a graph in memory is limited to 2 GiB
            implementation.apply(graph)
            file = Path(folder) / "model.onnx"
            save_model(graph, file)
        try:
            return OrtGraph(file, options, libraries=implementation.libraries)
        except StageError:
            model = load_model(file, external_data=False)
            _refuse_unimplemented(model, implementation)
            if "bfloat16" not in float_types(model):
                raise
        # ONNX Runtime has few bfloat16 kernels for the CPU
        emulated = Path(folder) / "emulated.onnx"
        save_model(emulate(load_model(file), "bf16"), emulated)
        return OrtGraph(emulated, options, libraries=implementation.libraries)


def _refuse_unimplemented(model: ModelProto, implementation: Implementation) -> None:
    implemented = {use.op for use in implementation.uses}
    implemented |= {operator_of(function) for function in model.functions}
    domains = {"ai.onnx", *(domain for domain, _ in schema_versions())}
    nodes = [node for node in nodes_of(model) if node.domain not in domains]
    missing = [node for node in nodes if operator_of(node) not in implemented]
    if missing:
        op, first = operator_of(missing[0]), missing[0].name or missing[0].output[0]
        domain, _, name = op.partition("::")
        remedies = refusal_remedies(OnnxOperator(domain, name), "onnxruntime")
        problem = f"nothing implements {op} for ONNX Runtime (node {first})"
        if untranslated := pytorch_operators(missing):
            problem += f": {', '.join(untranslated)} {OF_PYTORCH}"
            remedies = [remedy for remedy in remedies if remedy.name != "bundled plugin"]
        raise StageError(problem, format_remedies([("", remedies)]), OTHER_EXPORTS)


def random_inputs(
    inputs: Mapping[str, Any], case: str, dims: Mapping[str, int]
) -> dict[str, Tensor]:
    """Draw seeded inputs: normal floats, integers 0 or 1 (valid as indices)."""
    tensors = {}
    for name, spec in inputs.items():
        dtype, shape = spec["dtype"], concrete_shape(spec["shape"], dims)
        is_float = "float" in dtype or "complex" in dtype
        data = None if is_float else {"random": "integers", "low": 0, "high": 2}
        tensors[name] = golden_input(name, shape, dtype, data, case=case, seed=0, project=Path())
    return tensors


class GraphCheck:
    """A graph in ONNX Runtime, to compare with golden outputs."""

    def __init__(
        self, job: Job, graph: Path | ModelProto, rules: OutputRules | None = None
    ) -> None:
        """Load a graph; the rules are by default the job's. A model may change."""
        self._job, self._rules = job, rules or output_rules(job)
        self._file = graph if isinstance(graph, Path) else None
        self._graph = open_graph(job, graph)

    def compare(self, golden: Mapping[str, Case]) -> dict[str, ComparedCase]:
        """Compare all outputs in every case.

        The rounding noise of a file excuses errors, unless the manifest sets the limit.
        Raises: StageError: the graph cannot run.
        """
        checks = {}
        for name, case in golden.items():
            limits = golden_limits(self._job, {name: case})
            actual = run_case(self._graph, name, case.inputs)
            checks[name] = compare_case(case, actual, limits, self._rules)
            if self._file and limits["rtol"] and self._job.options["tolerance"]["rtol"] is None:
                checks[name] = self._excuse(checks[name], case, limits)
        return checks

    def _excuse(
        self, checked: ComparedCase, golden: Case, limits: Mapping[str, float | None]
    ) -> ComparedCase:
        def compare(actual: Tensors, expected: Tensors, rtol: float) -> Mapping[str, Comparison]:
            case, wider = replace(golden, outputs=expected), {**limits, "rtol": rtol}
            return compare_case(case, actual, wider, self._rules).compared

        nudged = partial(self._nudged, golden.inputs)
        return excuse_noise(checked, compare, nudged, limits["rtol"] or 0.0)

    def is_unstable(self, checked: ComparedCase, golden: Case) -> bool:
        """Check if the last bits of weights and inputs explain every wrong output of a case."""
        limits = golden_limits(self._job, {"": golden})
        own = replace(golden, outputs=checked.actual)

        def nudged(draw: int) -> ComparedCase:
            return compare_case(own, self._nudged(golden.inputs, draw), limits, self._rules)

        return is_unstable(checked, nudged, limits["rtol"])

    def _nudged(self, inputs: Tensors, draw: int) -> dict[str, Tensor]:
        """Compute the outputs with the last bits of weights and inputs changed.

        Small constants stay: sizes may be computed from them, such as the scales of Resize.
        """
        assert self._file is not None
        rng, model = np.random.default_rng(draw), load_model(self._file)
        for tensor in model.graph.initializer:
            if prod(tensor.dims) > _SMALL and dtype_name(tensor.data_type) in BITS:
                weight = {"": tensor_of(numpy_helper.to_array(tensor))}
                changed = nudged_tensors(weight, rng)[""].typed()
                tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
        return open_graph(self._job, model).run(nudged_tensors(inputs, rng))


def run_cases(job: Job, path: Path, feeds: Mapping[str, Tensors]) -> dict[str, dict[str, Tensor]]:
    """Run a graph in every case. The session is closed: two at a time would double the memory."""
    graph = open_graph(job, path)
    return {case: run_case(graph, case, inputs) for case, inputs in feeds.items()}


def run_case(graph: OrtGraph, case: str, inputs: Tensors) -> dict[str, Tensor]:
    """Run one case. Raises: StageError: it fails."""
    try:
        return graph.run(inputs)
    except StageError as error:
        problem = f"{error.problem}; case {case} fails"
        raise StageError(problem, error.hint or SIZE_HINT, OTHER_EXPORTS) from error


def compare_cases(
    actual: Mapping[str, Tensors],
    expected: Mapping[str, Tensors],
    limits: Mapping[str, float | None],
    feeds: Mapping[str, Tensors],
    policies: Mapping[str, Policy] | None = None,
) -> dict[str, ComparedCase]:
    """Compare every expected output of every case; ``feeds`` are the inputs."""
    return {
        name: compare_case(
            Case(feeds[name], outputs), actual[name], limits, OutputRules(policies or {})
        )
        for name, outputs in expected.items()
    }


def changed_counts(
    before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """Count the nodes of each operator that an edit removed and added."""
    return dict(Counter(before) - Counter(after)), dict(Counter(after) - Counter(before))
