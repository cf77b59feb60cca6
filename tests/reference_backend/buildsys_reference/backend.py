"""Building and running of engines, called in worker processes."""

import onnx
from onnx.reference import ReferenceEvaluator

from buildsys.backends.interface import Port, UnsupportedNode, raise_refused
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import tensor_of
from buildsys.system.cpu import cpu_model

RUN_OPTIONS = {"log_level": 0}  # what a user of load_engine may change
_TYPES = {value: name.lower() for name, value in onnx.TensorProto.DataType.items()} | {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.DOUBLE: "float64",
}


class ReferenceSession:
    """A loaded engine."""

    profiles = ()  # it accepts the same shapes as the graph

    def __init__(self, model, log_level):
        self.inputs = tuple(map(_port, model.graph.input))
        self.outputs = tuple(map(_port, model.graph.output))
        self._evaluator = ReferenceEvaluator(model, verbose=log_level)

    def run(self, inputs, profile=None):
        """Return the outputs by name."""
        missing = [port.name for port in self.inputs if port.name not in inputs]
        if missing:
            raise StageError(f"the input {missing[0]} is missing")
        feeds = {port.name: inputs[port.name].array for port in self.inputs}
        try:
            found = self._evaluator.run(None, feeds)
        except Exception as error:  # operators raise whatever numpy raises
            raise StageError(f"the graph cannot run: {error}") from error
        return {
            port.name: tensor_of(array, port.dtype)
            for port, array in zip(self.outputs, found, strict=True)
        }

    def bind(self, inputs, profile=None):
        """Return a call for the computation alone."""
        return lambda: self.run(inputs)

    def duplicate(self):
        """Return a session for another thread."""
        return self  # it keeps no state between runs

    def close(self):
        """Free the resources of the session."""


def prepare(options):
    """Check the options against the library and this machine; all of them work anywhere."""


def build(request):
    """Write the engine file; return the facts known from building."""
    try:
        ReferenceEvaluator(onnx.load(request.onnx))
    except (NotImplementedError, RuntimeError) as error:  # it stops at the first node
        node = UnsupportedNode(None, "", "", str(error))
        raise_refused(request, "the reference implementation", [node])
    onnx.save(onnx.load(request.onnx), request.engine)
    return {"settings": {"precision": request.options["precision"]}, "messages": []}


def describe(engine, options, operators=()):
    """Return the facts of an engine for its result file."""
    graph = onnx.load(engine).graph
    kinds = [node.op_type for node in graph.node]
    return {"engine_layers": {kind: kinds.count(kind) for kind in sorted(set(kinds))}}


def load(engine, options, operators=()):
    """Load a built engine."""
    return ReferenceSession(onnx.load(engine), options["log_level"])


def device(options):
    """Return the facts of the engine's device."""
    return {"kind": "cpu", "name": cpu_model()}


def _port(value):
    tensor = value.type.tensor_type
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in tensor.shape.dim
    )
    return Port(value.name, _TYPES[tensor.elem_type], shape)
