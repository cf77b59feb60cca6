"""Programs saved by ``torch.export.save``."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from buildsys.errors import StageError
from buildsys.models.exported_archive import check_archive
from buildsys.models.sources.source_module import SourceModule
from buildsys.system.memory_limit import memory_limit

_LOADING_BYTES = 2 << 30
_VARIABLES = {"TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": ""}


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Load the module of a saved program, without executing code of the file.

    Raises: StageError: it is missing, newer than torch, damaged or unsafe.
    """
    shown = source["exported_program"]
    file = project / shown
    if not file.is_file():
        raise StageError(f"{shown} does not exist in the project")
    try:
        with memory_limit(4 * file.stat().st_size + _LOADING_BYTES):
            program = check_archive(file, shown)
            exported = _load(file)
            module = exported.module()
    except StageError:
        raise
    except Exception as error:  # torch raises any class
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        saved_by = program.get("torch_version") or "an unknown version"
        raise StageError(
            f"torch.export cannot load {shown}: {first:.300}",
            f"it was saved by torch {saved_by:.40}, here is {torch.__version__}: save it again with"
            " this torch",
        ) from error
    # a program has one mode; torch would raise
    module.train = types.MethodType(_keep_mode, module)  # type: ignore[method-assign]
    module.eval = types.MethodType(_keep_mode, module)  # type: ignore[method-assign]
    for part in module.modules():
        part.training = False
    return SourceModule(module, f"from {shown}", shapes=_shapes(exported))


def _load(file: Path) -> torch.export.ExportedProgram:
    # torch.export.load would try an older format after a failure, which is not checked
    from torch.export.pt2_archive._package import load_pt2

    with _weights_only():
        loaded: torch.export.ExportedProgram = load_pt2(str(file)).exported_programs["model"]
    return loaded


@contextmanager
def _weights_only() -> Iterator[None]:
    """Let torch.load refuse pickled objects, even against its caller's wish."""
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update(_VARIABLES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _keep_mode(module: nn.Module, mode: bool = True) -> nn.Module:
    del mode
    return module


def _shapes(exported: torch.export.ExportedProgram) -> dict[str, tuple[int | None, ...]]:
    """Return the sizes of tensor inputs in order, None if dynamic."""
    user_inputs = set(exported.graph_signature.user_inputs)
    return {
        node.name: tuple(size if isinstance(size, int) else None for size in node.meta["val"].shape)
        for node in exported.graph.find_nodes(op="placeholder")
        if node.name in user_inputs and isinstance(node.meta.get("val"), torch.Tensor)
    }
