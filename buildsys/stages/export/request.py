"""The request to either exporter, and its warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.manifest.shape_cases import DimRange, Dims
from buildsys.models.torch_model import FlatCall, Network, check_outputs, example_inputs
from buildsys.models.user_code import innermost_location

_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")
_EXPECTED = (
    "You are using the legacy TorchScript-based ONNX export",  # the manifest's choice
    "The feature will be removed. Please remove usage of this function",  # internal
    "Setting ONNX exporter to use operator set version",  # the opset is checked in the file
    "# The axis name:",  # inputs with a common dimension, as in the manifest
)
_MAX_LENGTH = 300

DynamicAxes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """One module to export, called by position with ``arguments``, to ``path``."""

    module: nn.Module
    arguments: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic_inputs: DynamicAxes
    dynamic_outputs: DynamicAxes
    options: Mapping[str, Any]  # the manifest's export section
    path: Path
    example: Dims = field(default_factory=dict)  # the traced sizes
    ranges: Mapping[str, DimRange] = field(default_factory=dict)  # for dynamo
    # inputs of other sizes than ``arguments``
    inputs_at: Callable[[Dims], tuple[torch.Tensor, ...]] = lambda _: ()
    project: Path = Path()
    # for dynamo: overload -> function
    translations: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """The size of all parameters and buffers."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def given(self, *names: str) -> dict[str, Any]:
        """Return the named options set in the manifest."""
        return {name: self.options[name] for name in names if self.options[name] is not None}


def export_request(
    network: Network, options: Mapping[str, Any], project: Path, path: Path
) -> ExportRequest:
    """Call the network once for its outputs; return the exporter's request.

    Raises: StageError: forward fails, or its outputs cannot be exported.
    """
    result = network.example_result
    inputs = example_inputs(options, project)

    def inputs_at(dims: Dims) -> tuple[torch.Tensor, ...]:
        return tuple(example_inputs({**options, "example": dims}, project).values())

    if result is None:
        with torch.no_grad():
            result = network.result(inputs)
    outputs = network.name_outputs(result)
    check_outputs(outputs, options["outputs"], options["example"], inputs)
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
        dynamic_inputs=named_axes(options["inputs"]),
        dynamic_outputs=named_axes(options["outputs"]),
        options=options.get("export", {}),
        path=path,
        example=options["example"],
        ranges=options.get("ranges", {}),
        inputs_at=inputs_at,
        project=project,
    )


def named_axes(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, str]]:
    """Map tensors and axes to the names of dimensions."""
    axes = {
        name: {
            axis: size for axis, size in enumerate(tensor["shape"] or ()) if isinstance(size, str)
        }
        for name, tensor in tensors.items()
    }
    return {name: dynamic for name, dynamic in axes.items() if dynamic}


@contextmanager
def collect_warnings(found: list[str], project: Path) -> Iterator[None]:
    """Append distinct warnings and log messages to ``found``, first lines only.

    Warnings of the tracer are about the user's code, so they name its line.
    """

    def note(message: str) -> None:
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        text = lines[0][:_MAX_LENGTH] if lines else ""
        if text and text not in found and not text.startswith(_EXPECTED):
            found.append(text)

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(record.getMessage())

    handler = Collector(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message=".*LeafSpec")  # torch 2.11 on its own code
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        for warning in caught:
            text = str(warning.message)
            if warning.category.__name__ == "TracerWarning":  # torch.jit's
                text = text.partition(". ")[0]
                where = innermost_location([(warning.filename, warning.lineno)], project)
                text += f" ({where})" if where else ""
            note(text)
