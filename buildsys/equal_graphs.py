"""Tell whether two graphs compute the same: both run in ONNX Runtime on equal inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from onnx import ModelProto, TensorProto

from buildsys.backends.ort_session import OrtGraph, session_options
from buildsys.compare import Comparison, compare
from buildsys.errors import CheckFailed
from buildsys.onnx_graph import dtype_name, ports, tensors_of
from buildsys.tensors import Tensor

Tensors = Mapping[str, Tensor]
Limits = Mapping[str, float]

_RANDOM_OPERATORS = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout")
)
# Both graphs run in one runtime on equal inputs, so only the order of additions may differ: far less
# than between two frameworks. The narrowest float type of the graph decides.
_LIMITS: Mapping[str, Limits] = {
    "float32": {"rtol": 1e-5, "cosine": 0.99999},
    "float16": {"rtol": 1e-2, "cosine": 0.9999},
    "bfloat16": {"rtol": 5e-2, "cosine": 0.999},
}


def limits_of(model: ModelProto) -> Limits:
    """Return how far the outputs of a graph may be from those of another form of it."""
    stored = {dtype_name(t.data_type) for t in tensors_of(model) if t.data_type != TensorProto.UNDEFINED}
    types = stored.union(port["dtype"] for side in ports(model) for port in side)
    return next((_LIMITS[name] for name in ("bfloat16", "float16") if name in types), _LIMITS["float32"])


def open_graph(path: Path, threads: int = 0) -> OrtGraph:
    """Load a graph without optimizations, or the runtime's own fusions would stand between two graphs."""
    return OrtGraph(path, session_options(optimization="disable", intra_op_threads=threads))


def run_cases(path: Path, feeds: Mapping[str, Tensors], threads: int = 0) -> dict[str, dict[str, Tensor]]:
    """Return case -> outputs of a graph; it is closed again: two sessions at once would double the memory."""
    graph = open_graph(path, threads)
    return {case: graph.run(inputs) for case, inputs in feeds.items()}


def compare_cases(
    actual: Mapping[str, Tensors], expected: Mapping[str, Tensors], limits: Mapping[str, float | None]
) -> dict[str, dict[str, Comparison]]:
    """Compare every expected output of every case."""
    return {
        case: {name: compare(actual[case][name], tensor, limits) for name, tensor in outputs.items()}
        for case, outputs in expected.items()
    }


def random_operators(operators: Collection[str]) -> list[str]:
    """Return which of a graph's operators draw random numbers."""
    return sorted(_RANDOM_OPERATORS.intersection(operators))


def refuse_random_graph(path: Path, what: str, inputs: Tensors, limits: Limits, drawn_by: list[str]) -> None:
    """Raise CheckFailed where two runs on the same inputs differ; ``what`` names the graph."""
    # Two runs of one session: a new session starts its random numbers anew and hides that they are random.
    graph = open_graph(path)
    first, second = graph.run(inputs), graph.run(inputs)
    for name, tensor in first.items():
        if not compare(second[name], tensor, limits).passed:
            by = f" ({', '.join(drawn_by)})" if drawn_by else ""
            raise CheckFailed(
                f"{what} draws random numbers{by}: two runs on the same inputs differ in {name}",
                "export the model in evaluation mode, or make the noise an input",
            )
