"""Torch modules with weights, from the ``source`` of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.old_torch_names import provide_old_names
from buildsys.models.random_weights import draw_parameters, has_measured_layers
from buildsys.models.user_code import reraise_as_stage_error
from buildsys.models.weights_files import load_weights

TORCH_KINDS = ("torchvision", "timm", "transformers", "exported_program", "python")


@dataclass(frozen=True)
class SourceModule:
    """A module and the origin of its weights."""

    module: nn.Module
    weights: str
    needs_forward: bool = False  # one that measures layers, after drawing weights
    by_keyword: bool = False  # forward takes the inputs by their names
    # inputs of a program in order, with their sizes; None: dynamic
    shapes: Mapping[str, tuple[int | None, ...]] | None = None


def make_module(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build the module of a source other than ``onnx``.

    Raises: StageError: it is unknown or fails, or its weights are not available.
    """
    provide_old_names()
    torch.manual_seed(source["seed"])
    kind = next(kind for kind in TORCH_KINDS if kind in source)
    # imported by name: a static import would put the code of every kind into the key
    made: SourceModule = import_module(f"buildsys.models.sources.{kind}").make(source, project)
    made.module.eval()
    return made


def import_library(name: str, project: Path) -> Any:
    """Import the library of a source.

    Raises: StageError: it is not installed, or fails.
    """
    with reraise_as_stage_error(f"importing {name} failed", project):
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            problem = f"source.{name} needs the package {name}, which is not installed"
            raise StageError(problem, f"pip install {name}") from error


def load_file(
    module: nn.Module, source: Mapping[str, Any], project: Path, network: str
) -> SourceModule:
    """Return ``module`` with the weights of the source's file.

    Raises: StageError: they cannot be read or do not fit.
    """
    load_weights(module, source["weights"], project, network)
    return SourceModule(module, f"from {source['weights']['file']}")


def draw(module: nn.Module, seed: int) -> SourceModule:
    """Return ``module`` with random weights."""
    draw_parameters(module, seed)
    return SourceModule(module, f"random, seed {seed}", has_measured_layers(module))
