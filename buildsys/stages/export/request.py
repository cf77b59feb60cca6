"""The request to an exporter, its warnings, and the sizes that a captured program assumes.

torch.export follows one side of a branch such as ``if length % 7 == 0`` and notes the condition.
Within ``Dim.DYNAMIC`` it drops it silently. A condition alone does not make a graph wrong:
many branches only choose between equal ways. So the program runs in PyTorch at a size outside the
condition, and fails if it differs from the network there.
"""

import inspect
import itertools
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._sympy.printers import PythonPrinter

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import DimRange, Dims, allowed_sizes, format_dims
from buildsys.models.torch_model import FlatCall, Network, check_outputs, example_inputs
from buildsys.models.user_code import innermost_location
from buildsys.onnx_graphs.result_types import Doubt

_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")
_EXPECTED = (
    "You are using the legacy TorchScript-based ONNX export",  # the manifest's choice
    "The feature will be removed. Please remove usage of this function",  # internal
    "Setting ONNX exporter to use operator set version",  # the opset is checked in the file
    "# The axis name:",  # inputs with a common dimension, as in the manifest
)
_MAX_LENGTH = 300
_FIXES = re.compile(r"Converting a tensor to a (?:Python )?(\w+)|Iterating over a tensor")
_TRIED_SIZES = 1600  # combinations per condition, about
_TRIED_LATER = 64  # after the smallest excluded one
_TRIED_SHARES = (0.0, 1 / 3, 2 / 3, 1.0)  # of the excluded sizes in rising order
_MOST_RUNS = 32
_LIMIT, _STEPS = 1e-3, 8  # relative, and in steps of a narrow type; both sides run in PyTorch

DynamicAxes = Mapping[str, Mapping[int, str]]
Translations = Mapping[Any, Callable[..., Any]]  # overload -> function
Frames = list[tuple[str, int]]


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """One module to export, called by position with ``arguments``, to ``path``."""

    module: nn.Module
    arguments: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic_inputs: DynamicAxes
    dynamic_outputs: DynamicAxes
    job_options: Mapping[str, Any]
    options: Mapping[str, Any]  # the manifest's export section
    ranges: Mapping[str, DimRange]  # of dimensions, for torch.export
    path: Path
    project: Path
    translations: Translations  # for dynamo

    @property
    def weight_bytes(self) -> int:
        """The size of all parameters and buffers."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def set_options(self, *names: str) -> dict[str, Any]:
        """Return the named options set in the manifest."""
        return {name: self.options[name] for name in names if self.options[name] is not None}

    def dynamic_shapes(self, dim: Callable[[str], Any]) -> dict[str, Any] | None:
        """Map the parameters of forward to their dynamic axes, as torch.export expects."""
        axes = [
            {axis: dim(name) for axis, name in self.dynamic_inputs.get(tensor, {}).items()}
            for tensor in self.input_names
        ]
        if not any(axes):
            return None
        return dict(inspect.signature(self.module.forward).bind(*axes).arguments)


def export_request(
    network: Network,
    options: Mapping[str, Any],
    project: Path,
    path: Path,
    translations: Translations = MappingProxyType({}),
) -> ExportRequest:
    """Call the network once for its outputs; return the exporter's request.

    Raises: StageError: forward fails, or its outputs cannot be exported.
    """
    inputs = example_inputs(options, project)
    with torch.no_grad():
        result = network.result(inputs)
    outputs = network.name_outputs(result)
    check_outputs(outputs, options["outputs"], options["example"])
    for name, tensor in {**inputs, **outputs}.items():
        if tensor.is_complex():
            raise StageError(
                f"{name} is complex; no exporter can write complex inputs or outputs",
                "pass real and imaginary parts and convert them inside the network with"
                " torch.view_as_complex and view_as_real",
            )
    results = result if isinstance(result, tuple | list) else (result,)
    is_flat = all(isinstance(leaf, torch.Tensor) for leaf in results)
    by_position = is_flat and network.call is None and not any(network.keywords.values())
    return ExportRequest(
        module=network.module if by_position else FlatCall(network),
        arguments=tuple(inputs.values()),
        input_names=tuple(inputs),
        output_names=tuple(outputs),
        dynamic_inputs=_named_axes(options["inputs"]),
        dynamic_outputs=_named_axes(options["outputs"]),
        job_options=options,
        options=options.get("export", {}),
        ranges=options.get("ranges", {}),
        path=path,
        project=project,
        translations=translations,
    )


def _named_axes(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, str]]:
    """Map tensors and axes to the names of dimensions."""
    axes = {
        name: {
            axis: size for axis, size in enumerate(tensor["shape"] or ()) if isinstance(size, str)
        }
        for name, tensor in tensors.items()
    }
    return {name: dynamic for name, dynamic in axes.items() if dynamic}


@contextmanager
def collect_warnings(messages: list[str], doubts: list[Doubt], project: Path) -> Iterator[None]:
    """Append distinct warnings and log messages to ``messages``, first lines only.

    Warnings of the tracer are about the user's code, so they name its line; what it fixes there
    becomes a doubt.
    """
    texts: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: texts.append(record.getMessage())  # type: ignore[method-assign]
    with ExitStack() as stack:
        for logger in map(logging.getLogger, _LOGGERS):
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message=".*LeafSpec")  # torch 2.11 on its own code
        yield
    for warning in caught:
        text = str(warning.message)
        if warning.category.__name__ == "TracerWarning":  # torch.jit's
            where = innermost_location([(warning.filename, warning.lineno)], project)
            text = text.partition(". ")[0] + (f" ({where})" if where else "")
            if where and (match := _FIXES.match(text)):
                kind = "branch" if match[1] == "boolean" else "value"
                doubt = Doubt(kind=kind, text=text, place=where)
                doubts += [] if doubt in doubts else [doubt]
                continue
        texts.append(text)
    lines = [text.strip().splitlines()[0][:_MAX_LENGTH] for text in texts if text.strip()]
    messages += [line for line in dict.fromkeys(lines) if not line.startswith(_EXPECTED)]


@contextmanager
def recorded_guards() -> Iterator[dict[Any, Frames]]:
    """Collect the conditions that torch.export assumes, with their frames, innermost first.

    They are in no program that the dynamo exporter returns.
    """
    guards: dict[Any, Frames] = {}  # by sympy expression
    original: Any = ShapeEnv._log_guard

    def log_guard(self: ShapeEnv, prefix: str, guard: Any, *more: Any, **named: Any) -> Any:
        if "suppressed" not in prefix and guard not in guards:
            stack = traceback.walk_stack(None)
            guards[guard] = [(frame.f_code.co_filename, line) for frame, line in stack]
        return original(self, prefix, guard, *more, **named)

    ShapeEnv._log_guard = log_guard  # type: ignore[method-assign, assignment]
    try:
        yield guards
    finally:
        ShapeEnv._log_guard = original  # type: ignore[method-assign]


def check_guards(program: Any, guards: Mapping[Any, Frames], request: ExportRequest) -> None:
    """Run a captured program at sizes within ``dims`` that its guards exclude.

    Raises: CheckFailed: the program differs from the network there.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names: dict[str, str] = {}  # torch's symbol -> the manifest's dimension
    for name, node in zip(request.input_names, program.graph_signature.user_inputs, strict=True):
        for axis, dim in request.dynamic_inputs.get(name, {}).items():
            names[str(values[str(node)].shape[axis])] = dim
    excluded: dict[tuple[int, ...], tuple[Dims, Any]] = {}
    for condition in guards:
        symbols = {str(symbol) for symbol in condition.free_symbols}
        if symbols and all(names.get(symbol) in request.ranges for symbol in symbols):
            for dims in _excluded_sizes(condition, names, request.ranges):
                sizes = {**request.job_options["example"], **dims}
                excluded.setdefault(tuple(sizes.values()), (sizes, condition))
    if not excluded or not _agrees(program, request, request.arguments):
        return  # not a program that PyTorch can run as it is: validate compares the graph
    for sizes, condition in itertools.islice(excluded.values(), _MOST_RUNS):
        try:
            options = {**request.job_options, "example": sizes}
            inputs = example_inputs(options, request.project)
        except StageError:  # the manifest's data has no such size
            continue
        if not _agrees(program, request, tuple(inputs.values())):
            named = {s: sympy.Symbol(names[str(s)], integer=True) for s in condition.free_symbols}
            text = PythonPrinter().doprint(condition.xreplace(named))
            line = innermost_location(guards[condition], request.project)
            ranges = " and ".join(sorted(f"dims.{symbol}" for symbol in named.values()))
            raise CheckFailed(
                f"the exported program is right only for {text}{f' ({line})' if line else ''},"
                f" but dims allow {format_dims(sizes)}, where it differs from the network",
                f"narrow {ranges}, set multiple_of, or replace the branch in the code by one that"
                " does not depend on the size (torch.where, torch.cond)",
            )


def _excluded_sizes(
    condition: Any, names: Mapping[str, str], ranges: Mapping[str, DimRange]
) -> list[Dims]:
    """Find sizes within ``ranges`` for which a condition does not hold: small, middle, large.

    At some of them, another condition may hide that. torch takes sizes of 0 and 1 for special; the
    case min compares those.
    """
    symbols = {symbol: names[str(symbol)] for symbol in condition.free_symbols}
    dims = sorted(set(symbols.values()))
    most = max(round(_TRIED_SIZES ** (1 / len(dims))), 2)
    constants = [int(number) for number in condition.atoms(sympy.Integer)]
    near = [size for c in constants for size in (c - 1, c, c + 1, 2 * c)]
    values = []
    for dim in dims:
        allowed, high = allowed_sizes(ranges[dim]), int(ranges[dim]["max"] or 0)
        spread = (*near, *allowed[: most // 2], *allowed[:: len(allowed) // (most // 2) or 1])
        values.append(sorted({size for size in (*spread, high) if size in allowed and size >= 2}))
    ordered = [dict(zip(dims, s, strict=True)) for s in sorted(itertools.product(*values), key=sum)]

    def is_excluded(sizes: Dims) -> bool:
        numbers = {symbol: sympy.Integer(sizes[name]) for symbol, name in symbols.items()}
        return bool(condition.xreplace(numbers) == sympy.false)

    first = next((place for place, sizes in enumerate(ordered) if is_excluded(sizes)), None)
    if first is None:
        return []
    later = ordered[first + 1 :][:: (len(ordered) - first) // _TRIED_LATER + 1]
    excluded = [ordered[first], *filter(is_excluded, later)]
    places = {round(share * (len(excluded) - 1)) for share in _TRIED_SHARES}
    return [excluded[place] for place in sorted(places)]


def _agrees(program: Any, request: ExportRequest, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Compare the program with the network; true if the network refuses the inputs."""
    results: list[list[torch.Tensor]] = []
    for call in (request.module, program.module(check_guards=False)):
        torch.manual_seed(0)
        try:
            with torch.no_grad():
                result = call(*(tensor.clone() for tensor in inputs))
        except Exception:  # the user's code, or a view of a fixed size in the program
            return not results
        results.append(list(result) if isinstance(result, tuple | list) else [result])
    try:
        for expected, actual in zip(*results, strict=True):
            largest, limit = 0.0, 0.0
            if expected.is_floating_point() and expected.numel():
                largest = float(expected.abs().nan_to_num(posinf=0.0).max())
                limit = max(_LIMIT, _STEPS * torch.finfo(expected.dtype).eps)
            torch.testing.assert_close(
                actual, expected, rtol=0.0, atol=limit * largest, equal_nan=True
            )
    except AssertionError:
        return False
    return True


@contextmanager
def training_layers(project: Path) -> Iterator[dict[str, str]]:
    """Collect the layers called in training mode: ONNX operator -> place.

    Exporters drop some of them. Layers in plain lists, which ``eval()`` does not reach, count.
    """
    places: dict[str, str] = {}

    def note(layer: nn.Module, _arguments: Any) -> None:
        if layer.training and (operator := _training_operator(layer)):
            stack = traceback.walk_stack(None)
            frames = [(frame.f_code.co_filename, line) for frame, line in stack]
            places.setdefault(operator, innermost_location(frames, project))

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield places
    finally:
        handle.remove()


def _training_operator(layer: nn.Module) -> str:
    """Name the operator if it draws numbers, or forgets its running statistics."""
    if isinstance(layer, _DropoutNd) and layer.p:
        return "Dropout"
    is_tracking = isinstance(layer, _BatchNorm) and layer.running_mean is not None
    return "BatchNormalization" if is_tracking else ""
