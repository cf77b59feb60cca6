"""Reading, checking and deterministic writing of ONNX files, and their interfaces."""

import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto
from onnx.external_data_helper import ExternalDataInfo

from buildsys.errors import StageError
from buildsys.onnx_graphs.result_types import GraphSummary, TensorPort
from buildsys.onnx_graphs.tensors import Array
from buildsys.system.file_kinds import describe_file

STANDARD = ("", "ai.onnx")  # the names of ONNX's own domain
DATA_SUFFIX = ".data"  # external data of model.onnx is model.onnx.data
ONE_MESSAGE_LIMIT = 1_500_000_000  # bytes; protobuf's limit is 2 GiB, and libraries add to a graph
# Larger weights are external data, which readers (checker, ONNX Runtime) map or skip: for 500 MB,
# 0.4 s instead of 1.5 s per session, and nothing instead of 0.8 s per check.
INLINE_LIMIT = 64 * 2**20  # bytes
_LARGEST_FILE = 2**31 - 1  # bytes, without external data
_EXTERNAL_FROM = 1024  # bytes; shape inference needs shapes and other small constants inline
_ALIGNMENT = 4096  # bytes; a page, so that tensors can be mapped
_INVALID = (onnx.checker.ValidationError, onnx.shape_inference.InferenceError)
_MOST_NODES = 200_000  # of a graph with functions; ONNX Runtime needs a minute to inline them
_DTYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}


def load_model(path: Path, *, external_data: bool = True) -> ModelProto:
    """Read an ONNX file, by default with its external data.

    Raises: StageError: the file is not ONNX, or its external data is missing.
    """
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise ValueError(f"it has {size} bytes, and protobuf files at most {_LARGEST_FILE}")
        if not size:
            raise ValueError("it is empty")  # for protobuf, a message without fields
        model = onnx.load(path, load_external_data=external_data)
    except (DecodeError, OSError, ValueError, onnx.checker.ValidationError) as error:
        kind, remedy = describe_file(path) if path.is_file() else ("", "")
        if kind:
            raise StageError(f"{path.name} {kind}", remedy) from error
        raise StageError(
            f"{path.name} cannot be read as ONNX: {first_line(error)}",
            "check the file; export it again if it is damaged",
        ) from error
    refuse_expansion(model, path.name)
    return model


def refuse_expansion(model: ModelProto, name: str) -> None:
    """Check the size of a graph whose function calls are inlined.

    Raises: StageError: the checker and ONNX Runtime would hardly end.
    """
    if model.functions and _inlined_nodes(model) > _MOST_NODES:
        problem = f"more than {_MOST_NODES:,} nodes in all calls, or call themselves"
        raise StageError(f"the functions of {name} have {problem}", "call them less often")


def _inlined_nodes(model: ModelProto) -> float:
    """Count the nodes of a graph with those of all function calls; inf for a recursion."""
    functions = {_identifier(function, function.name): function for function in model.functions}
    counts: dict[tuple[str, str, str], float] = {}

    def count(graph: GraphProto | FunctionProto) -> float:
        total = 0.0
        for node in all_nodes(graph):
            name = _identifier(node, node.op_type)
            if name in functions and name not in counts:
                counts[name] = math.inf  # until its own calls are counted
                counts[name] = count(functions[name])
            total += counts.get(name, 1.0)
        return total

    try:
        return count(model.graph)
    except RecursionError:
        return math.inf


def _identifier(item: NodeProto | FunctionProto, name: str) -> tuple[str, str, str]:
    return item.domain, name, getattr(item, "overload", "")  # since ONNX 1.16


def save_model(
    model: ModelProto,
    path: Path,
    *,
    inline_limit: int = INLINE_LIMIT,
    weights_of: Path | None = None,
) -> None:
    """Write a model deterministically, with weights above ``inline_limit`` as external data.

    External weights leave ``model``. Weights already outside it are in the external data of the
    ONNX file ``weights_of``; without it they are in that of ``path`` and stay there.
    """
    if weights_of is not None or not any(
        tensor.data_location == TensorProto.EXTERNAL for tensor in tensors_of(model)
    ):
        data_path(path).unlink(missing_ok=True)
        folder = (weights_of or path).parent
        # raw_data copies the bytes at every access
        sizes = [(t, outside_bytes(t) or len(t.raw_data)) for t in tensors_of(model)]
        limit = _EXTERNAL_FROM if sum(size for _, size in sizes) > inline_limit else math.inf
        for tensor, size in sizes:
            if size < limit and tensor.data_location == TensorProto.EXTERNAL:
                tensor.raw_data = content_of(tensor, folder).tobytes()
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
        apart = [tensor for tensor, size in sizes if size >= limit]
        if apart:
            with data_path(path).open("wb") as stream:
                for tensor in apart:
                    offset = stream.seek(-stream.tell() % _ALIGNMENT, os.SEEK_CUR)
                    length = stream.write(content_of(tensor, folder).data)
                    place = {"location": data_path(path).name, "offset": offset, "length": length}
                    tensor.ClearField("raw_data")
                    tensor.ClearField("external_data")
                    tensor.data_location = TensorProto.EXTERNAL
                    for key, value in place.items():
                        tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString(deterministic=True))


def content_of(tensor: TensorProto, data: Path) -> Array:
    """Return the bytes of a tensor; external ones stay in their file until they are used.

    ``data`` is the file of external contents, or its folder.
    Raises: StageError: the contents are not in the folder, or truncated. OSError.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return np.frombuffer(tensor.raw_data, np.uint8)
    place = ExternalDataInfo(tensor)
    problem = f"the weights of {tensor.name} are in {place.location!r}, which is"
    hint = "save the graph again, with its weights next to it"
    if place.location in ("", "..") or "/" in place.location:  # not by us: it may be any file
        raise StageError(f"{problem} not a file in the folder of the graph", hint)
    file, start = data / place.location if data.is_dir() else data, place.offset or 0
    size = file.stat().st_size
    length = size - start if place.length is None else place.length
    if length < 0 or start + length > size:
        raise StageError(f"{problem} truncated", hint)
    return np.memmap(file, np.uint8, "r", start, (length,)) if length else np.empty(0, np.uint8)


def copy_model(source: Path, target: Path) -> None:
    """Copy an ONNX file with its external data. The name stays."""
    shutil.copyfile(source, target)
    if data_path(source).exists():
        shutil.copyfile(data_path(source), data_path(target))


def check_file(
    path: Path,
    what: str,
    failure: type[StageError] = StageError,
    hint: str = "repair the graph, or the step that wrote it",
    changes: Sequence[str] = (),
) -> None:
    """Run the ONNX checker on a file, including shapes and types.

    Raises: failure: the graph is invalid; ``what`` names it, e.g. ``the exported graph``.
    """
    try:
        # by path: a proto would be serialized again, with a limit of 2 GiB
        onnx.checker.check_model(str(path), full_check=True)
    except (*_INVALID, ValueError, RuntimeError) as error:
        problem = f"{what} is not valid ONNX: {first_line(error)}"
        raise failure(problem, hint, changes) from error


def file_facts(model: ModelProto, path: Path) -> GraphSummary:
    """Measure a model and its file."""
    operators = operator_counts(model)
    return {"nodes": sum(operators.values()), "operators": operators, "bytes": file_bytes(path)}


def operator_counts(model: ModelProto) -> dict[str, int]:
    """Count operators with subgraphs and local functions, by falling count."""
    counts = Counter(map(operator_name, all_nodes(model.graph)))
    counts.update(operator_name(node) for function in model.functions for node in function.node)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def operator_name(node: NodeProto) -> str:
    """Write the operator as ``Conv``, or ``my.domain::Op`` for other domains."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """Yield all nodes, also of subgraphs and local functions."""
    for body in (model.graph, *model.functions):
        yield from all_nodes(body)


def all_nodes(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from all_nodes(body)


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the bodies of an If, Loop or Scan node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Yield all initializers and tensor attributes, including those of subgraphs and functions."""
    for body in (model.graph, *model.functions):
        yield from _body_tensors(body)


def gathered_rows(model: ModelProto) -> set[int]:
    """List the sizes of tables of weights that Gather nodes read by index."""
    shapes = {tensor.name: tensor.dims for tensor in tensors_of(model)}
    return {
        int(shapes[node.input[0]][0])
        for node in nodes_of(model)
        if node.op_type == "Gather" and shapes.get(node.input[0])
    }


def _body_tensors(body: GraphProto | FunctionProto) -> Iterator[TensorProto]:
    if isinstance(body, GraphProto):
        yield from body.initializer
        for sparse in body.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in body.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for inner in subgraphs(node):
            yield from _body_tensors(inner)


def parameter_count(model: ModelProto) -> int:
    """Count the elements of all initializers."""
    return sum(math.prod(tensor.dims) for tensor in model.graph.initializer)


def ports(model: ModelProto) -> tuple[list[TensorPort], list[TensorPort]]:
    """List inputs (without initializers) and outputs."""
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [port_of(value) for value in model.graph.input if value.name not in stored]
    return inputs, [port_of(value) for value in model.graph.output]


def opsets(model: ModelProto) -> dict[str, int]:
    """Map domains to opset versions; ONNX's own domain is ``ai.onnx``."""
    return {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}


def interface(model: ModelProto) -> dict[str, Any]:
    """Collect inputs, outputs and opsets, to compare with those of another graph."""
    inputs, outputs = ports(model)
    return {"input": inputs, "output": outputs, "opset": opsets(model)}


def interface_changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """Yield one phrase per change visible to a caller."""
    opset = before["opset"]
    used = {domain: after["opset"].get(domain, version) for domain, version in opset.items()}
    if used != opset:
        yield f"opset {opset} became {used}"
    sizes = (size for port in before["input"] for size in port["shape"] or ())
    named = {size for size in sizes if isinstance(size, str)}
    for side in ("input", "output"):
        names, new_names = [[port["name"] for port in ends[side]] for ends in (before, after)]
        if names != new_names:
            yield f"its {side}s {', '.join(names)} became {', '.join(new_names) or 'none'}"
            return
        for port, other in zip(before[side], after[side], strict=True):
            if port["dtype"] != other["dtype"]:
                yield f"{side} {port['name']} was {port['dtype']} and became {other['dtype']}"
            elif not _same_shape(port["shape"], other["shape"], fixed=side == "input", named=named):
                yield f"{side} {port['name']} was {port['shape']} and became {other['shape']}"


def _same_shape(
    before: list[Any] | None, after: list[Any] | None, *, fixed: bool, named: set[str]
) -> bool:
    """Check for equal shapes. Unknown sizes may become known.

    A dynamic size of an input, or of an output with the name of an input's dimension, must stay
    dynamic: with the example's batch size baked in, a graph works for that size alone.
    """
    if before is None or after is None:
        return before is after or (before is None and not fixed)
    if len(before) != len(after):
        return False
    for was, now in zip(before, after, strict=True):
        may_become_known = not fixed and not isinstance(was, int) and was not in named
        if was != now and not may_become_known and (isinstance(was, int) or isinstance(now, int)):
            return False
    return True


def dtype_name(elem_type: int) -> str:
    """Name a TensorProto data type as in manifests, e.g. ``float32`` for FLOAT."""
    name = str(TensorProto.DataType.Name(elem_type))
    return _DTYPE_NAMES.get(name, name.lower())


def elem_type(dtype: str) -> int:
    """Look up the TensorProto data type of a manifest's name, e.g. FLOAT for ``float32``."""
    names = {ours: theirs for theirs, ours in _DTYPE_NAMES.items()}
    return int(TensorProto.DataType.Value(names.get(dtype, dtype.upper())))


def file_bytes(path: Path) -> int:
    """Measure an ONNX file with its external data."""
    data = data_path(path)
    return path.stat().st_size + (data.stat().st_size if data.exists() else 0)


def outside_bytes(tensor: TensorProto) -> int:
    """Measure a tensor outside the model, 0 if inline."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return 0
    return ExternalDataInfo(tensor).length or 0


@contextmanager
def tool_errors(problem: str, hint: str = "", changes: Sequence[str] = ()) -> Iterator[None]:
    """Raise StageError with the first line of any error of a tool: they raise all classes."""
    try:
        yield
    except StageError:
        raise
    except Exception as error:
        raise StageError(f"{problem}: {first_line(error)}", hint, changes) from error


def first_line(error: BaseException) -> str:
    """Shorten an error to one line, without its context for developers."""
    text = " ".join(str(error).split("==> Context")[0].split())
    return text if len(text) <= 400 else text[:400] + "…"


def port_of(value: onnx.ValueInfoProto) -> TensorPort:
    """Read name, dtype and shape of a tensor."""
    if not value.type.HasField("tensor_type"):
        return {"name": value.name, "dtype": str(value.type.WhichOneof("value")), "shape": None}
    tensor = value.type.tensor_type
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        dims = tensor.shape.dim
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in dims]
    return {"name": value.name, "dtype": dtype_name(tensor.elem_type), "shape": shape}


def data_path(path: Path) -> Path:
    """Name the external data of an ONNX file."""
    return path.with_name(path.name + DATA_SUFFIX)
