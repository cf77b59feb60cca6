"""Networks defined by users with TensorRT's API.

TensorRT reads weights when it builds, from arrays that it does not own. Those that the function
gets or gives to layers, and whatever it returns, are kept until then.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from buildsys.backends.interface import BuildRequest, Definition
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.library import DTYPES, TensorRTLibrary, is_strong
from buildsys.backends.tensorrt.log import Messages
from buildsys.backends.tensorrt.network_edits import io_tensors
from buildsys.backends.tensorrt.parse import Parsed
from buildsys.errors import StageError
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import Array, load_arrays

Tensors = Mapping[str, Mapping[str, Any]]  # name -> shape and dtype as in the manifest
_WEIGHTS = ("kernel", "bias", "shift", "scale", "power", "weights")  # attributes of layers
_SMALLER = {"int64": "int32"}  # for a library without the former; its parser does the same


def define_network(
    library: TensorRTLibrary, builder: Any, request: BuildRequest, messages: Messages
) -> Parsed:
    """Call the user's function on a new network, and check the result.

    Raises: StageError: the function is missing, takes other parameters or raises, TensorRT refuses
    a layer, or inputs and outputs are not those of the manifest.
    """
    definition, options = request.definition or Definition(""), request.options
    name = definition.function
    function = load_callable(name, request.project)
    network = version_adapter.create_network(library, builder, strong=is_strong(options))
    weights = _read_weights(definition.weights, request.project)
    names = inspect.signature(function).parameters
    offered = {"weights": weights, "precision": options["precision"]}
    offered = {word: value for word, value in offered.items() if word in names}
    keeper: list[Any] = [weights]
    try:
        with (
            _assigned_weights_kept(library, keeper),
            reraise_as_stage_error(f"{name} failed", request.project),
        ):
            arguments = {**offered, **definition.kwargs}
            keeper.append(function(network, library.trt, **arguments))
    except StageError as failure:
        words = f"; {library.title} says: {messages.error_text('')}" if messages.errors else ""
        hint = _hint(failure.__cause__, library) or failure.hint
        raise StageError(failure.problem + words, hint) from failure
    if network.num_outputs == 0 and not messages.errors:
        text = f"{name} marks no output of the network"
        raise StageError(text, "mark each one: network.mark_output(layer.get_output(0))")
    inputs, outputs = io_tensors(network)
    problems = [*_differences(library, "input", inputs, request.inputs, request.dims)]
    if definition.outputs:
        problems += _differences(library, "output", outputs, definition.outputs, request.dims)
    if messages.errors:  # some of layers appear when shapes are read
        text = f"{name} did what {library.title} refuses: {messages.error_text('')}"
        raise StageError(text, "correct the function")
    if problems:
        hint = "correct the function, or inputs, outputs and dims in the manifest"
        raise StageError(f"{name}: {'; '.join(problems)}", hint)
    return Parsed(builder, network, keeper, [], accepted=True)


@contextmanager
def _assigned_weights_kept(library: TensorRTLibrary, keeper: list[Any]) -> Iterator[None]:
    """Keep weights that the block assigns to layers, as in ``layer.kernel = array``.

    A network keeps the arrays in calls such as ``add_constant``, but not these.
    """
    changed = []
    names = (name for name in dir(library.trt) if name.endswith("Layer"))
    for layer_class in (getattr(library.trt, name) for name in names):
        for attribute in _WEIGHTS:
            own = vars(layer_class).get(attribute)
            if isinstance(own, property) and own.fset is not None:
                changed.append((layer_class, attribute, own))
                setattr(layer_class, attribute, _keeping(own, keeper))
    try:
        yield
    finally:
        for layer_class, attribute, own in changed:
            setattr(layer_class, attribute, own)


def _keeping(own: property, keeper: list[Any]) -> property:
    def assign(layer: Any, value: Any) -> None:
        keeper.append(value)
        own.__set__(layer, value)

    return property(own.fget, assign)


def _read_weights(file: Path | None, project: Path) -> dict[str, Array]:
    """Read the arrays of a file by name, {} without one.

    Raises: StageError: it cannot be read.
    """
    try:
        return load_arrays(file) if file is not None else {}
    except (OSError, ValueError) as error:
        path = file.relative_to(project) if file and file.is_relative_to(project) else file
        problem = f"{path} cannot be read as an .npz file: {error}"
        raise StageError(problem, "save it with numpy.savez") from error


def _hint(cause: BaseException | None, library: TensorRTLibrary) -> str:
    """Return the remedy for an exception of a user's function, if there is a known one."""
    if isinstance(cause, TypeError) and "incompatible function arguments" in str(cause):
        return "weights are contiguous arrays of a type of TensorRT: numpy.ascontiguousarray"
    if isinstance(cause, TypeError) and "argument" in str(cause):
        return (
            "write def define(network, trt): …, with the parameters weights and precision if it"
            " needs them, and set source.kwargs for further ones"
        )
    if isinstance(cause, AttributeError):
        return (
            f"the name is of another version than {library.release}, or TensorRT returned None: it"
            " refuses a layer, or a plugin is not registered (name its library in ops)"
        )
    return ""


def _differences(
    library: TensorRTLibrary,
    kind: str,
    tensors: Sequence[Any],
    declared: Tensors,
    dims: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    """Yield differences between a network's ports and the manifest's."""
    words = DTYPES.words(library)
    names = [tensor.name for tensor in tensors]
    if missing := [name for name in declared if name not in names]:
        yield f"the network has no {kind} {', '.join(missing)}, only {', '.join(names) or 'none'}"
    if unknown := [name for name in names if name not in declared]:
        yield f"the manifest declares no {kind} {', '.join(unknown)}"
    for tensor in (tensor for tensor in tensors if tensor.name in declared):
        expected, where = declared[tensor.name], f"{kind} {tensor.name}"
        dtype, shape = expected["dtype"], expected["shape"]
        if dtype not in words.values():
            dtype = _SMALLER.get(dtype, dtype)
        if dtype and words[tensor.dtype] != dtype:
            yield f"{where} is {words[tensor.dtype]}, and {expected['dtype']} in the manifest"
        if shape is None:
            continue
        try:
            sizes = list(tensor.shape)
        except (RuntimeError, ValueError):  # the shapes of its layers contradict each other
            yield f"{where} has no shape that TensorRT can compute"
            continue
        fits = (
            size == -1 or dims[declared_size]["min"] == size == dims[declared_size]["max"]
            if isinstance(declared_size, str) and declared_size in dims
            # a size of an output may follow from values
            else declared_size is None or size == declared_size or (size == -1 and kind == "output")
            for size, declared_size in zip(sizes, shape, strict=False)
        )
        if len(sizes) != len(shape) or not all(fits):
            sizes_text = ", ".join("null" if size is None else str(size) for size in shape)
            text = f"{where} has the shape {sizes}, and [{sizes_text}] in the manifest"
            yield f"{text} (-1 is any size)"
