"""Programs saved by ``torch.export.save``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export.passes import move_to_device_pass
from torch.export.pt2_archive._package import load_pt2
from torch.utils._pytree import tree_unflatten

from buildsys.errors import StageError
from buildsys.models.program_nodes import unknown_calls
from buildsys.models.sources.source_module import ProgramInput, SourceModule, needs_gpu
from buildsys.models.user_code import first_line, project_file, source_line


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Load the module of a saved program; torch can run code of the file.

    Raises: StageError: it is missing, damaged, or not readable by this torch.
    """
    name = source["exported_program"]
    file = project_file(name, project)
    try:
        _check_operators(file, name, project)
        exported = load_pt2(str(file)).exported_programs["model"]
        tensors = [*exported.state_dict.values(), *exported.constants.values()]
        on_gpu = any(isinstance(tensor, torch.Tensor) and tensor.is_cuda for tensor in tensors)
        if on_gpu != needs_gpu(source):
            exported = move_to_device_pass(exported, source.get("device", "cpu"))
        module = exported.module()
    except StageError:
        raise
    except Exception as error:  # torch raises any class
        while (inner := error.__cause__) is not None and isinstance(inner, Exception):
            error = inner
        reason = first_line(error).partition(". ")[0].rstrip(".")
        raise StageError(
            f"torch.export cannot load {name}: {reason:.300}",
            f"save it again with torch {torch.__version__}: torch.export.save(program, FILE); for"
            " a machine without a GPU, move_to_device_pass(program, 'cpu') of torch.export.passes",
        ) from error
    return SourceModule(module, f"from {name}", program=_inputs(exported))


def _check_operators(file: Path, name: str, project: Path) -> None:
    """Check that torch has all operators of a program.

    Raises: StageError: lists all others with the lines that call them.
    """
    lines: dict[str, str] = {}
    for call in unknown_calls(file):
        lines.setdefault(call.operator, source_line(call.trace, project))
    if lines:
        calls = [f"{operator} ({line})" if line else operator for operator, line in lines.items()]
        raise StageError(
            f"torch.export cannot load {name}: nothing registers {', '.join(calls)}",
            f"save it again with torch {torch.__version__} in PyTorch's own operators, or use the"
            " network's code, which registers others: source: {python: FILE.py:CALLABLE}",
        )


def _inputs(exported: torch.export.ExportedProgram) -> dict[str, ProgramInput]:
    """List the tensor inputs in order; nested ones are not passed by keyword."""
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    names = exported.graph_signature.user_inputs
    leaves = [name if isinstance(name, str) else None for name in names]
    _, kwargs = tree_unflatten(leaves, exported.call_spec.in_spec)
    keywords = {name: key for key, name in kwargs.items() if isinstance(name, str)}
    return {
        name: ProgramInput(
            tuple(size if isinstance(size, int) else str(size) for size in values[name].shape),
            str(values[name].dtype).removeprefix("torch."),
            keywords.get(name),
        )
        for name in leaves
        if name is not None and isinstance(values[name], torch.Tensor)
    }
