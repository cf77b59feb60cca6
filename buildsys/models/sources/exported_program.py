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
from torch.export.graph_signature import InputKind, TensorArgument
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_unflatten

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
        raise StageError(
            f"{shown} does not exist in the project",
            "check source.exported_program, relative to the project",
        )
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
        hint = "save it again, it is damaged"
        if saved_by != torch.__version__:
            hint = f"it was saved by torch {saved_by:.40}, here is {torch.__version__}: use that"
            hint += " version, or save it again with this one"
        raise StageError(f"torch.export cannot load {shown}: {first:.300}", hint) from error
    # a program has one mode; torch would raise
    module.train = types.MethodType(_keep_mode, module)  # type: ignore[method-assign]
    module.eval = types.MethodType(_keep_mode, module)  # type: ignore[method-assign]
    for part in module.modules():
        part.training = False
    spans = {
        str(symbol): (int(span.lower), int(min(span.upper, _LARGEST_SIZE)))
        for symbol, span in exported.range_constraints.items()
    }
    inputs, call = _inputs(exported)
    return SourceModule(module, f"from {shown}", program=inputs, call=call, spans=spans)


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


def _inputs(
    exported: torch.export.ExportedProgram,
) -> tuple[dict[str, ProgramInput], Mapping[str, Any] | None]:
    """Return the tensor inputs in order, and the ``call`` if arguments are not one tensor each."""
    shapes = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    leaves = [
        _Name(given.arg.name) if isinstance(given.arg, TensorArgument) else given.arg.value
        for given in exported.graph_signature.input_specs
        if given.kind == InputKind.USER_INPUT
    ]
    args, kwargs = tree_unflatten(leaves, exported.call_spec.in_spec)
    is_flat = all(isinstance(value, _Name) for value in (*args, *kwargs.values()))
    keywords = {str(value): key for key, value in kwargs.items() if isinstance(value, _Name)}
    inputs = {
        str(name): ProgramInput(
            tuple(size if isinstance(size, int) else str(size) for size in shapes[name].shape),
            str(shapes[name].dtype).removeprefix("torch."),
            keywords.get(name) if is_flat else None,
        )
        for name in leaves
        if isinstance(name, _Name)
    }
    call = {
        "args": [_of_manifest(value) for value in args],
        "kwargs": {key: _of_manifest(value) for key, value in kwargs.items()},
    }
    return inputs, None if is_flat else call


class _Name(str):
    """The name of a tensor input, unlike a string argument."""

    __slots__ = ()


def _of_manifest(value: Any) -> Any:
    """Return an argument as the manifest's ``call`` has it."""
    if isinstance(value, _Name):
        return str(value)
    if isinstance(value, str):
        return {"text": value}
    if isinstance(value, Mapping):
        return {str(key): _of_manifest(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        members = [_of_manifest(member) for member in value]
        return {"tuple": members} if isinstance(value, tuple) else members
    return value
