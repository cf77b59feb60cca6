"""The way from an ONNX graph to a network of ncnn.

pnnx takes single sizes: a dynamic batch becomes 1, and an engine computes one sample at a time.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ncnn
import onnx

from buildsys.backends.interface import BuildRequest, UnsupportedNode, raise_refused
from buildsys.backends.ncnn.description import layer_kinds
from buildsys.errors import StageError, Unavailable
from buildsys.onnx_graphs.graph_reader import inline_all
from buildsys.onnx_graphs.onnx_file import ONE_MESSAGE_LIMIT, load_model, ports
from buildsys.system.backend_registry import package_folder
from buildsys.system.processes import describe_exit

_AXIS = re.compile(r"\b(in|out)(\d+)\.?.*\bbatch_index=(\d+)")  # in pnnx's example program
NO_BATCH = 233  # pnnx's batch_index of a tensor without one
_MOST_AXES = 4
_INPUT_TYPES = ("float32", "int32", "int64")
_ANOTHER_BACKEND = "build this engine with another backend"


@dataclass(frozen=True)
class Converted:
    """The files of a network, and its inputs and outputs."""

    param: Path
    weights: Path
    interface: dict[str, Any]  # ports with the axis of their batch, ranges of sizes


def convert(request: BuildRequest, folder: Path) -> Converted:
    """Convert the graph to a network of ncnn, in ``folder``.

    Raises: GraphRefusedError: pnnx has left operators as they are.
    """
    package = package_folder("pnnx")
    if package is None or not (package / "pnnx").is_file():
        text = "engines of ncnn are built with pnnx, which is not installed"
        raise Unavailable(text, "pip install --no-deps pnnx")
    graph = load_model(request.onnx)
    if graph.functions:
        graph = inline_all(graph)
    interface = fix_batch(graph, request)
    for node in graph.graph.node:
        if node.op_type == "Gather" and not any(attribute.i for attribute in node.attribute):
            del node.attribute[:]  # pnnx takes it for an embedding without its default axis only
    if graph.ByteSize() > ONE_MESSAGE_LIMIT:
        text = f"model {request.model}: its weights are too large for pnnx, which takes one file"
        raise StageError(text, _ANOTHER_BACKEND)
    onnx.save(graph, str(folder / "m.onnx"))
    request.progress("converting the graph")
    half = request.options["precision"] == "fp16"
    words = [str(package / "pnnx"), "m.onnx", f"fp16={int(half)}"]
    code = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, check=False).returncode
    param = folder / "m.ncnn.param"
    if code or not param.is_file():
        text = f"model {request.model}: pnnx {describe_exit(code)}"
        raise StageError(text, f"its log has pnnx's messages; {_ANOTHER_BACKEND}")
    if unknown := [kind for kind in layer_kinds(param) if ncnn.layer_to_index(kind) < 0]:
        raise_refused(request, "ncnn", list(_nodes_of(unknown, graph)))
    axes = {
        f"{match[1]}{match[2]}": int(match[3])
        for match in map(_AXIS.search, (folder / "m_ncnn.py").read_text().splitlines())
        if match
    }
    for role in ("in", "out"):
        for index, port in enumerate(interface[f"{role}puts"]):
            port["batch_axis"] = axis = axes.get(f"{role}{index}")
            if axis is None:
                text = f"model {request.model}: ncnn has no {role}put for {port['name']}"
                raise StageError(text, f"an output must depend on an input; {_ANOTHER_BACKEND}")
            if len(port["shape"]) - (axis != NO_BATCH) > _MOST_AXES:
                text = f"the {role}put {port['name']} has {len(port['shape'])} axes"
                raise StageError(f"model {request.model}: {text}, and ncnn takes {_MOST_AXES}")
    return Converted(param, folder / "m.ncnn.bin", interface)


def fix_batch(graph: onnx.ModelProto, request: BuildRequest) -> dict[str, Any]:
    """Set a dynamic batch to 1; return inputs, outputs and the batch's range.

    Raises: StageError: another size is dynamic, or a type unknown to ncnn.
    """
    inputs, outputs = ports(graph)
    firsts = [port["shape"][0] for port in inputs if port["shape"]]
    batch = next((size for size in firsts if isinstance(size, str)), None)
    for value in (*graph.graph.input, *graph.graph.output):
        for dim in value.type.tensor_type.shape.dim[:1]:
            if batch and dim.dim_param == batch:
                dim.dim_value = 1
    del graph.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(graph)
    fixed = {port["name"]: port["shape"] for ends in ports(inferred) for port in ends}
    for role, ends, types in (("input", inputs, _INPUT_TYPES), ("output", outputs, ("float32",))):
        for port in ends:
            shape, where = fixed[port["name"]], f"model {request.model}: the {role} {port['name']}"
            if port["dtype"] not in types:
                text = f"{where} has the type {port['dtype']}, and ncnn takes {', '.join(types)}"
                raise StageError(text, f"cast it in the network, or {_ANOTHER_BACKEND}")
            sizes = [None] if shape is None else [n for n in shape if not isinstance(n, int)]
            if shape is None or sizes:
                names = ", ".join(str(size or "unknown") for size in sizes)
                text = f"{where} has the dynamic size {names}, and ncnn varies a leading batch only"
                hint = f"give the inputs fixed sizes, or {_ANOTHER_BACKEND}"
                raise StageError(text, hint)
            dynamic = [batch, *shape[1:]] if batch and (port["shape"] or [0])[0] == batch else shape
            if batch and role == "output" and dynamic is shape:
                text = f"{where} has no leading {batch}, and an engine of ncnn computes samples"
                raise StageError(text, f"give the inputs a fixed batch, or {_ANOTHER_BACKEND}")
            port["shape"] = dynamic
    spans = {batch: {p: request.dims[batch][p] for p in ("min", "max")}} if batch else {}
    return {"inputs": inputs, "outputs": outputs, "dims": spans}


def _nodes_of(kinds: list[str], graph: onnx.ModelProto) -> Iterator[UnsupportedNode]:
    """Find nodes by the names of layers that ncnn does not know: ``torch.topk`` of a TopK."""
    reason = "ncnn has no layer for it"
    names = set(kinds) - {_EXPRESSION} or {_EXPRESSION}  # it has the constants of other layers
    for kind in sorted(names):
        name = _plain(re.split(r"\.|::", kind)[-1])
        nodes = [
            UnsupportedNode(index, node.name, node.op_type, reason, output=node.output[0])
            for index, node in enumerate(graph.graph.node)
            if name == _plain(_RENAMED.get(node.op_type, node.op_type))
        ]
        yield from nodes or [UnsupportedNode(None, "", kind, reason)]


_EXPRESSION = "pnnx.Expression"
_RENAMED: Mapping[str, str] = {"Cast": "to"}  # ONNX -> PyTorch


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
