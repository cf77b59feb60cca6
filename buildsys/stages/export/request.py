"""What both exporters are asked for, and what they say while they work."""

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

_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")
_EXPECTED = (
    "You are using the legacy TorchScript-based ONNX export",  # the manifest chose it
    "The feature will be removed. Please remove usage of this function",  # the exporter about its own parts
    "Setting ONNX exporter to use operator set version",  # the opset is read back
    "# The axis name:",  # inputs that share a dimension, as the manifest says
)
_LONGEST = 300

DynamicAxes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, eq=False)
class ExportRequest:
    """One module to export, called by position with ``arguments``, to the file ``path``."""

    module: nn.Module
    arguments: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic_inputs: DynamicAxes
    dynamic_outputs: DynamicAxes
    options: Mapping[str, Any]  # the manifest's export section
    path: Path
    translations: Mapping[Any, Callable[..., Any]] = field(
        default_factory=dict
    )  # overload -> function, for dynamo

    @property
    def weight_bytes(self) -> int:
        """Return the size of all parameters and buffers."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def given(self, *names: str) -> dict[str, Any]:
        """Return those of the named options that the manifest sets."""
        return {name: self.options[name] for name in names if self.options[name] is not None}


def named_axes(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, str]]:
    """Return tensor name -> axis -> dimension for every named dimension of the manifest's tensors."""
    axes = {
        name: {
            axis: size for axis, size in enumerate(tensor["shape"] or ()) if isinstance(size, str)
        }
        for name, tensor in tensors.items()
    }
    return {name: dynamic for name, dynamic in axes.items() if dynamic}


@contextmanager
def collecting_warnings(found: list[str]) -> Iterator[None]:
    """Append what is warned or logged inside to ``found``: first lines only, each once."""
    handler = _Collector(found)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", message=".*LeafSpec")  # torch 2.11 about its own code
            yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        for warning in caught:
            _note(found, str(warning.message))


class _Collector(logging.Handler):
    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.found = found

    def emit(self, record: logging.LogRecord) -> None:
        _note(self.found, record.getMessage())


def _note(found: list[str], message: str) -> None:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = lines[0][:_LONGEST] if lines else ""
    if text and text not in found and not text.startswith(_EXPECTED):
        found.append(text)
