"""Layers of a network that run in training mode, found while it is called."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from buildsys.models.user_code import innermost_location


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
