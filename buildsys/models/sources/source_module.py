"""Torch modules with weights, from the ``source`` of a manifest."""

import types
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.random_weights import draw_parameters, has_measured_layers
from buildsys.models.weights_files import LoadedWeights, load_weights

GPU = "cuda"
TORCH_KINDS = ("torchvision", "timm", "transformers", "exported_program", "python")


class ProgramInput(NamedTuple):
    """An input of a saved program."""

    shape: tuple[int | str, ...]  # a dynamic size is an expression of symbols
    dtype: str
    keyword: str | None  # None: by position


@dataclass(frozen=True)
class SourceModule:
    """A module and the origin of its weights."""

    module: nn.Module
    weights: str
    needs_forward: bool = False  # one that measures layers, after drawing weights
    by_keyword: bool = False  # forward takes the inputs by their names
    program: Mapping[str, ProgramInput] | None = None  # inputs of a saved program in order
    file: LoadedWeights | None = None


def make_module(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build the module of a source other than ``onnx``.

    Raises: StageError: it is unknown or fails, its weights are not available, or torch finds no GPU
    for one that needs it.
    """
    if on_gpu := needs_gpu(source):
        if not torch.cuda.is_available():
            raise StageError(
                f"source.device is cuda, but torch {torch.__version__} finds no GPU here",
                "build on a machine with an NVIDIA GPU, or take the results of one from a shared"
                " cache",
            )
        torch.backends.cudnn.allow_tf32 = False  # its 10 bits of mantissa are no reference
    torch.manual_seed(source["seed"])
    kind = next(kind for kind in TORCH_KINDS if kind in source)
    # imported by name: a static import would put the code of every kind into the key
    made: SourceModule = import_module(f"buildsys.models.sources.{kind}").make(source, project)
    for part in made.module.modules():
        if "eval" in vars(part):  # a captured program has one mode: torch lets eval() raise
            part.train = types.MethodType(_keep_mode, part)  # type: ignore[method-assign]
            part.eval = types.MethodType(_keep_mode, part)  # type: ignore[method-assign]
            for inner in part.modules():
                inner.training = False
    made.module.eval()
    if on_gpu:
        made.module.to(GPU)
    return made


def _keep_mode(module: nn.Module, mode: bool = True) -> nn.Module:
    del mode
    return module


def needs_gpu(source: Mapping[str, Any]) -> bool:
    """Check for a network that is built on a GPU."""
    return source.get("device") == GPU


def filled(
    module: nn.Module, source: Mapping[str, Any], project: Path, network: str
) -> SourceModule:
    """Fill ``module`` with the weights of the source's file, or with random ones.

    Raises: StageError: the file cannot be read or does not fit.
    """
    if weights := source["weights"]:
        loaded = load_weights(module, weights, project, network)
        return SourceModule(module, loaded.origin, file=loaded)
    seed = source["seed"]
    draw_parameters(module, seed)
    return SourceModule(module, f"random, seed {seed}", has_measured_layers(module))
