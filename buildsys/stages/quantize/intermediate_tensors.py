"""Values of a graph's intermediate tensors, in groups of limited memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.onnx_graphs.onnx_file import save_model
from buildsys.onnx_graphs.tensor_types import FreshNames, element_types
from buildsys.onnx_graphs.tensors import Array
from buildsys.stages.quantize.batches import Batch

Values = Callable[[Batch], dict[str, Array]]
_GROUP_BYTES = 1 << 30


class IntermediateTensors:
    """The float32 inputs and results of a graph, in graph order."""

    def __init__(
        self, model: ModelProto, scratch: Path, threads: int = 0, libraries: Sequence[Path] = ()
    ) -> None:
        """Take a graph ready for ONNX Runtime; ``scratch`` holds temporary copies."""
        self._model, self._scratch = model, scratch
        self._threads, self._libraries = threads, libraries
        self.nodes: Sequence[NodeProto] = model.graph.node
        types = element_types(model)
        stored = {tensor.name for tensor in model.graph.initializer}
        self._given, self._inner = (
            [name for name in names if types.get(name) == TensorProto.FLOAT and name not in stored]
            for names in (
                [value.name for value in model.graph.input],
                [name for node in model.graph.node for name in node.output if name],
            )
        )
        self.names = [*self._given, *self._inner]

    def groups(self, batch: Batch) -> Iterator[Values]:
        """Yield functions for groups of tensors, sized by their bytes for ``batch``."""
        yield lambda other: {name: other[name].array for name in self._given}
        group: list[str] = []
        room = _GROUP_BYTES
        for name, size in self._sizes(batch).items():
            if group and size > room:
                yield self._values(group)
                group, room = [], _GROUP_BYTES
            group.append(name)
            room -= size
        if group:
            yield self._values(group)

    def all_of(self, batch: Batch) -> Iterator[tuple[str, Array]]:
        """Yield every tensor and its values for one batch."""
        for values in self.groups(batch):
            yield from values(batch).items()

    def _values(self, names: Sequence[str]) -> Values:
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        graph = self._open([], outputs)
        return lambda batch: {name: tensor.array for name, tensor in graph.run(batch).items()}

    def _sizes(self, batch: Batch) -> dict[str, int]:
        """Return the bytes of each tensor, measured by Size nodes."""
        fresh = FreshNames(self._model.graph)
        probes = {fresh.new(f"{name}_size"): name for name in self._inner}
        nodes = [helper.make_node("Size", [name], [probe]) for probe, name in probes.items()]
        outputs = [helper.make_tensor_value_info(probe, TensorProto.INT64, []) for probe in probes]
        found = self._open(nodes, outputs).run(batch) if probes else {}
        return {probes[probe]: 4 * int(tensor.array) for probe, tensor in found.items()}

    def _open(self, nodes: Sequence[NodeProto], outputs: Sequence[ValueInfoProto]) -> OrtGraph:
        """Open a copy with additional nodes and other outputs."""
        model = ModelProto()
        model.CopyFrom(self._model)
        model.graph.node.extend(nodes)
        del model.graph.output[:]
        model.graph.output.extend(outputs)
        options = session_options(optimization="disable", intra_op_threads=self._threads)
        # by path: a graph in memory is limited to 2 GiB
        with TemporaryDirectory(dir=self._scratch) as folder:
            path = Path(folder) / "tensors.onnx"
            save_model(model, path)
            return OrtGraph(path, options, libraries=self._libraries)
