"""Values of the tensors inside a graph, and the errors that a conversion adds to them."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.onnx_graphs.tensors import Array, Case, Tensor
from buildsys.stages.common.graph_runs import open_graph
from buildsys.stages.common.node_patterns import TensorOrigin
from buildsys.stages.operators.implementation import implementation_of
from buildsys.workers.job import Job

Batch = Mapping[str, Tensor]
Values = Callable[[Batch], dict[str, Array]]
_GROUP_BYTES = 1 << 30  # computed at a time


class IntermediateTensors:
    """The float32 inputs and results of a graph, in graph order."""

    def __init__(self, job: Job, model: ModelProto) -> None:
        """Take a job's graph, which may change for its custom operators."""
        implementation_of(job).apply(model)
        self._job, self._model = job, model
        self.nodes: Sequence[NodeProto] = model.graph.node
        types = element_types(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        self._ports, self.results = (
            [name for name in names if types.get(name) == TensorProto.FLOAT and name not in stored]
            for names in (
                [value.name for value in model.graph.input],
                [name for node in model.graph.node for name in node.output if name],
            )
        )
        self.names = [*self._ports, *self.results]

    def groups(self, batch: Batch) -> Iterator[Values]:
        """Yield functions for groups of tensors, sized by their bytes for ``batch``."""
        yield lambda other: {name: other[name].array for name in self._ports}
        for group in self.grouped(batch, self.results, _GROUP_BYTES):
            yield self.values(group)

    def grouped(self, batch: Batch, names: Sequence[str], limit: int) -> Iterator[list[str]]:
        """Group tensors by their bytes, measured by Size nodes."""
        fresh = FreshNames(self._model.graph)
        probes = {name: fresh.new(f"{name}_size") for name in names}
        nodes = [helper.make_node("Size", [name], [probe]) for name, probe in probes.items()]
        outputs = [
            helper.make_tensor_value_info(probe, TensorProto.INT64, []) for probe in probes.values()
        ]
        counts = self._open(nodes, outputs).run(batch) if probes else {}
        group: list[str] = []
        room = limit
        for name, probe in probes.items():
            size = 4 * int(counts[probe].array)
            if group and size > room:
                yield group
                group, room = [], limit
            group.append(name)
            room -= size
        if group:
            yield group

    def values(self, names: Sequence[str]) -> Values:
        """Open the graph with these tensors as its outputs."""
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        graph = self._open([], outputs)
        return lambda batch: {name: tensor.array for name, tensor in graph.run(batch).items()}

    def _open(self, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto]) -> OrtGraph:
        """Open a copy with additional nodes and other outputs."""
        model = ModelProto()
        model.CopyFrom(self._model)
        model.graph.node.extend(nodes)
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        return open_graph(self._job, model)


@dataclass(frozen=True)
class Loss:
    """Error of one node's result, and of its inputs.

    Errors are the norm of the difference over the norm of the float32 tensor.
    """

    result: TensorOrigin
    error: float
    before: float

    @property
    def added(self) -> float:
        """The error added by this node; infinite where an overflow begins."""
        return self.error - self.before if math.isfinite(self.before) else 0.0


def largest_losses(
    job: Job, exact: ModelProto, converted: ModelProto, nodes: Collection[str], case: Case
) -> list[Loss]:
    """Compare both graphs' tensors in one case; list the losses of ``nodes``, largest first.

    Tensors without a counterpart in the other graph are left out. Both graphs may change.
    """
    tensors, others = (IntermediateTensors(job, model) for model in (exact, converted))
    errors: dict[str, float] = {}
    theirs = set(others.results)
    common = [name for name in tensors.results if name in theirs]
    for group in tensors.grouped(case.inputs, common, _GROUP_BYTES // 2):
        expected, actual = (graph.values(group)(case.inputs) for graph in (tensors, others))
        for name in group:
            if actual[name].shape == expected[name].shape:
                errors[name] = _relative_error(expected[name], actual[name])
    losses = [
        Loss(
            TensorOrigin(node.output[0], node.op_type, node.name),
            errors[node.output[0]],
            max((errors.get(name, 0.0) for name in node.input), default=0.0),
        )
        for node in tensors.nodes
        if node.name in nodes and node.output[0] in errors
    ]
    return sorted(losses, key=lambda loss: -loss.added)


def _relative_error(expected: Array, actual: Array) -> float:
    if not np.isfinite(actual).all():
        return math.inf if np.isfinite(expected).all() else 0.0
    scale = float(np.abs(expected).max(initial=0.0))
    if scale == 0.0:
        return math.inf if actual.any() else 0.0
    a, b = actual.astype(np.float64) / scale, expected.astype(np.float64) / scale
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
