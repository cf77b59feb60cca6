"""Equivalence of two graphs, tested in ONNX Runtime on equal inputs."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import concrete_shape
from buildsys.onnx_graphs.output_policies import Policy, compare_outputs
from buildsys.onnx_graphs.tensor_comparison import Comparison, compare
from buildsys.onnx_graphs.tensor_types import narrowest_float
from buildsys.onnx_graphs.tensors import Tensor, tensor_of
from buildsys.stages.operators.open_graph import open_graph
from buildsys.workers.job import Job

Tensors = Mapping[str, Tensor]
Limits = Mapping[str, float]

_MAYBE_FIXED = (
    "the graph may be right only for the sizes of the trace: the warnings of the export name the"
    " lines; make these sizes numbers in inputs, or change the code"
)
_RANDOM_OPERATORS = frozenset((
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
))  # fmt: skip
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


def random_inputs(
    inputs: Mapping[str, Any], case: str, dims: Mapping[str, int]
) -> dict[str, Tensor]:
    """Draw seeded inputs: normal floats, integers 0 or 1 (valid as indices)."""
    tensors = {}
    for name, spec in inputs.items():
        dtype, shape = spec["dtype"], concrete_shape(spec["shape"], dims)
        rng = np.random.default_rng(zlib.crc32(f"{case}/{name}".encode()))
        values: Any
        if dtype.startswith("float") or dtype == "bfloat16":
            values = rng.standard_normal(shape, dtype=np.float32)
        elif dtype.startswith("complex"):
            values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        else:
            values = rng.integers(0, 2, shape)
            values = np.where(values, "a", "b") if dtype == "string" else values
        tensors[name] = tensor_of(values, dtype)
    return tensors


def run_cases(job: Job, path: Path, feeds: Mapping[str, Tensors]) -> dict[str, dict[str, Tensor]]:
    """Run a graph in every case.

    The session is closed: two at a time would double the memory.
    """
    graph = open_graph(job, path)
    return {case: run_case(graph, case, feeds) for case in feeds}


def run_case(graph: OrtGraph, case: str, feeds: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Run one case.

    Raises: StageError: it fails; if another case runs, a size is fixed in the graph.
    """
    try:
        return graph.run(feeds[case])
    except StageError as error:
        others = [other for other in feeds if other != case and _runs(graph, feeds[other])]
        if not others:
            raise StageError(error.problem, error.hint or _MAYBE_FIXED) from error
        raise StageError(
            f"{error.problem}; case {case} fails, unlike {', '.join(others)}: a size is fixed in"
            " the graph",
            "limit dims to the sizes that run, or make the size a number in inputs; if exporter"
            " torchscript fixed it, dynamo keeps sizes that forward neither loops over nor turns"
            " into numbers: export: {exporter: dynamo, opset: 18}",
        ) from error


def _runs(graph: OrtGraph, inputs: Tensors) -> bool:
    try:
        graph.run(inputs)
    except StageError:
        return False
    return True


def compare_cases(
    actual: Mapping[str, Tensors],
    expected: Mapping[str, Tensors],
    limits: Mapping[str, float | None],
    feeds: Mapping[str, Tensors],
    policies: Mapping[str, Policy] | None = None,
) -> dict[str, dict[str, Comparison]]:
    """Compare every expected output of every case; ``feeds`` are the inputs."""
    return {
        case: compare_outputs(actual[case], outputs, limits, policies, inputs=feeds[case])
        for case, outputs in expected.items()
    }


def random_operators(operators: Collection[str]) -> list[str]:
    """List the operators with random output."""
    return sorted(_RANDOM_OPERATORS.intersection(operators))


def refuse_random_graph(
    job: Job, path: Path, what: str, inputs: Tensors, limits: Limits, drawn_by: list[str]
) -> None:
    """Raise CheckFailed if two runs on the same inputs differ.

    ``what`` names the graph.
    """
    # One session runs twice: a new session would restart its random sequence and repeat it.
    graph = open_graph(job, path)
    first, second = graph.run(inputs), graph.run(inputs)
    for name, tensor in first.items():
        if not compare(second[name], tensor, limits).passed:
            by = f" ({', '.join(drawn_by)})" if drawn_by else ""
            raise CheckFailed(
                f"{what} draws random numbers{by}: two runs on the same inputs differ in {name}",
                "export the model in evaluation mode, or make the noise an input",
            )
