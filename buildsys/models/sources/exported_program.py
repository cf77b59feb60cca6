"""Programs saved by ``torch.export.save``."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from buildsys.errors import StageError
from buildsys.models.exported_archive import check_archive
from buildsys.models.sources.source_module import ProgramInput, SourceModule, needs_gpu
from buildsys.system.memory_limit import memory_limit

_LOADING_BYTES = 2 << 30
_LARGEST_SIZE = 2**31 - 1
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
            tensors = [*exported.state_dict.values(), *exported.constants.values()]
            on_gpu = any(isinstance(each, torch.Tensor) and each.is_cuda for each in tensors)
            if on_gpu != needs_gpu(source):
                exported = move_to_device_pass(exported, source.get("device", "cpu"))
            module = exported.module()
    except StageError:
        raise
    except Exception as error:  # torch raises any class
        if '"type": "cuda"' in json.dumps(program) and not torch.cuda.is_available():
            raise StageError(
                f"{shown} was saved on a GPU, and torch {torch.__version__} finds none here",
                "save torch.export.passes.move_to_device_pass(program, 'cpu'), or build on a"
                " machine with an NVIDIA GPU",
            ) from error
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        first = (str(cause).strip().splitlines() or [type(cause).__name__])[0].partition(". ")[0]
        saved_by = program.get("torch_version") or "an unknown version"
        raise StageError(
            f"torch.export cannot load {shown}: {first:.300}",
            f"it was saved by torch {saved_by:.40}, here is {torch.__version__}: use that version,"
            " or save it again with this one",
        ) from error
    # a program has one mode; torch would raise
    module.train = types.MethodType(_keep_mode, module)  # type: ignore[method-assign]
    module.eval = types.MethodType(_keep_mode, module)  # type: ignore[method-assign]
    for part in module.modules():
        part.training = False
    spans = {
        str(symbol): (int(span.lower), int(min(span.upper, _LARGEST_SIZE)))
        for symbol, span in exported.range_constraints.items()
    }
    return SourceModule(module, f"from {shown}", program=_inputs(exported), spans=spans)


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


def _inputs(exported: torch.export.ExportedProgram) -> dict[str, ProgramInput]:
    """Return the tensor inputs in order."""
    user_inputs = set(exported.graph_signature.user_inputs)
    nodes = [n for n in exported.graph.find_nodes(op="placeholder") if n.name in user_inputs]
    keywords = [
        *exported.call_spec.in_spec.children()[1].context
    ]  # empty without keyword arguments
    names = [*[None] * (len(nodes) - len(keywords)), *keywords]
    return {
        node.name: ProgramInput(
            tuple(size if isinstance(size, int) else str(size) for size in value.shape),
            str(value.dtype).removeprefix("torch."),
            keyword,
        )
        for node, keyword in zip(nodes, names, strict=True)
        if isinstance(value := node.meta.get("val"), torch.Tensor)
    }
