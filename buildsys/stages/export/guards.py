"""Assumptions of torch.export on sizes, against the ranges of ``dims``.

torch.export follows one side of a branch such as ``if length % 7 == 0`` and notes the condition.
Within ``Dim.DYNAMIC`` it drops it without a word. A condition alone does not make a graph wrong:
many branches only choose between equal ways, and ``pad(x, n)`` with n = 0 is what the other side
does. So the program runs in PyTorch at a size outside the condition, and fails if it differs there.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from buildsys.errors import CheckFailed, StageError
from buildsys.manifest.shape_cases import DimRange, Dims
from buildsys.models.user_code import innermost_location
from buildsys.stages.export.request import ExportRequest
from buildsys.system.files import in_library

_SOURCE = re.compile(
    r"L\['(?P<parameter>\w+)'\](?:\[(?P<position>\d+)\])?\.size\(\)\[(?P<axis>\d+)\]"
)
_TRIED = 1600  # combinations of sizes per condition, about
_MOST_RUNS = 16
_LIMIT, _STEPS = 1e-3, 8  # relative, and in steps of a narrow type; both sides run in PyTorch
_HINT = (
    "narrow {dims}, set multiple_of, or replace the branch in the code by one that does not depend"
    " on the size (torch.where, torch.cond)"
)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
Frames = list[tuple[str, int]]
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition assumed by a captured program."""

    environment: ShapeEnv
    condition: Any  # sympy
    frames: Frames  # innermost first


@contextmanager
def recorded_guards() -> Iterator[list[Guard]]:
    """Collect all guards with their places in the code.

    They are dropped from the program, and their traces from the environment, before it is returned.
    A torch without this internal function records none.
    """
    guards: list[Guard] = []
    original: Any = getattr(ShapeEnv, "_log_guard", None)
    if original is None:
        yield guards
        return

    def log_guard(self: ShapeEnv, prefix: str, guard: Any, *more: Any, **named: Any) -> Any:
        if "suppressed" not in prefix:
            frames, frame = [], inspect.currentframe()
            while frame is not None:
                frames.append((frame.f_code.co_filename, frame.f_lineno))
                frame = frame.f_back
            guards.append(Guard(self, guard, frames))
        return original(self, prefix, guard, *more, **named)

    ShapeEnv._log_guard = log_guard  # type: ignore[method-assign, assignment]
    try:
        yield guards
    finally:
        ShapeEnv._log_guard = original  # type: ignore[method-assign]


def check_guards(program: Any, guards: Sequence[Guard], request: ExportRequest) -> None:
    """Run the program at sizes excluded by its guards.

    Raises: CheckFailed: the program differs from the network there.
    """
    environment = _environment(program)
    excluded: dict[tuple[int, ...], tuple[Dims, str, Guard]] = {}
    tried = set()
    for guard in guards:
        if environment is not None and guard.environment is not environment:
            continue  # its attempt failed
        if guard.condition in tried:
            continue
        tried.add(guard.condition)
        names = _dimensions(guard.environment, request)
        symbols = sorted(guard.condition.free_symbols, key=str)
        if not symbols or not all(names.get(symbol) in request.ranges for symbol in symbols):
            continue
        dims = _excluded(guard.condition, {s: names[s] for s in symbols}, request.ranges)
        if dims is not None:
            sizes = {**request.example, **dims}
            text = _text(guard.condition, {symbol: names[symbol] for symbol in symbols})
            excluded.setdefault(tuple(sizes.values()), (sizes, text, guard))
    if not excluded or not _agrees(program, request, request.arguments):
        return  # not a program that PyTorch can run as it is: validate compares the graph
    for sizes, text, guard in itertools.islice(excluded.values(), _MOST_RUNS):
        try:
            inputs = request.inputs_at(sizes)
        except StageError:  # the manifest's data has no such size
            continue
        if _agrees(program, request, inputs):
            continue
        frames = [frame for frame in guard.frames if not _is_standard_library(frame[0])]
        line = innermost_location(frames, request.project)
        where = f" ({line})" if line else ""
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        dims_shown = " and ".join(f"dims.{name}" for name in sizes if name in text) or "dims"
        raise CheckFailed(
            f"the exported program is right only for {text}{where}, but dims allow {listed}, where"
            " it differs from the network",
            _HINT.format(dims=dims_shown),
        )


def _is_standard_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) and not in_library(file)


def _environment(program: Any) -> ShapeEnv | None:
    for node in program.graph.nodes:
        mode = getattr(node.meta.get("val"), "fake_mode", None)
        if mode is not None and mode.shape_env is not None:
            environment: ShapeEnv = mode.shape_env
            return environment
    return None


def _dimensions(environment: ShapeEnv, request: ExportRequest) -> dict[Any, str]:
    """Map symbols to the manifest's dimensions."""
    bound = inspect.signature(request.module.forward).bind(*request.input_names).arguments
    names = {}
    for source, symbol in environment.source_to_var.items():
        match = _SOURCE.fullmatch(source)
        if match is None or match["parameter"] not in bound:
            continue
        tensor = bound[match["parameter"]]
        if match["position"] is not None:
            tensor = tensor[int(match["position"])]
        axes = request.dynamic_inputs.get(tensor, {})
        if int(match["axis"]) in axes:
            names[symbol] = axes[int(match["axis"])]
    return names


def _excluded(
    condition: Any, names: Mapping[Any, str], ranges: Mapping[str, DimRange]
) -> Dims | None:
    """Find the first sizes within ``ranges`` excluded by a condition.

    torch takes sizes of 0 and 1 for special; the case min compares those.
    """
    dims = sorted(set(names.values()))
    most = max(round(_TRIED ** (1 / len(dims))), 2)
    constants = {int(number) for number in condition.atoms(sympy.Integer)}
    values = [_values(ranges[dim], constants, most) for dim in dims]
    for sizes in sorted(itertools.product(*values), key=sum):
        chosen = dict(zip(dims, sizes, strict=True))
        result = condition.xreplace({s: sympy.Integer(chosen[name]) for s, name in names.items()})
        if result == sympy.false:
            return chosen
    return None


def _values(span: DimRange, constants: set[int], most: int) -> list[int]:
    """List values of a range: those near constants, and others evenly."""
    low, high, step = int(span["min"] or 0), int(span["max"] or 0), int(span["multiple_of"] or 1)
    allowed = range(low, high + 1, step)
    near = {value for c in constants for value in (c - 1, c, c + 1, 2 * c)}
    spread = [*allowed[: most // 2], *allowed[:: max(len(allowed) // (most // 2), 1)], allowed[-1]]
    return sorted({v for v in (*near, *spread) if v in allowed and v >= 2})


def _text(condition: Any, names: Mapping[Any, str]) -> str:
    named = condition.xreplace(
        {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    )
    try:
        from torch.utils._sympy.printers import PythonPrinter

        return str(PythonPrinter().doprint(named))
    except (ImportError, RuntimeError, TypeError):
        return str(named)


def _agrees(program: Any, request: ExportRequest, inputs: Tensors) -> bool:
    """Compare the program with the network; a failure is a difference.

    True as well if the network itself refuses the inputs, or draws random numbers.
    """
    runs = []
    with torch.no_grad():
        for seed in (0, 1):
            torch.manual_seed(seed)
            try:
                runs.append(flat(request.module(*(tensor.clone() for tensor in inputs))))
            except Exception:  # the user's code may raise anything
                return True
        if not are_close(*runs):
            return True
        torch.manual_seed(0)
        try:
            return are_close(_run(program, inputs), runs[0])
        except Exception:  # such as a view of a fixed size
            return False


def _run(program: Any, inputs: Tensors) -> list[torch.Tensor]:
    """Run the program's operators without its assertions."""
    tensors = iter(tensor.clone() for tensor in inputs)
    stored = {**program.state_dict, **program.constants}
    arguments = [
        next(tensors) if spec.kind.name == "USER_INPUT" else stored[spec.target]
        for spec in program.graph_signature.input_specs
    ]

    class Unchecked(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if re.search("assert|sym_constrain", str(target)):
                return None
            return super().call_function(target, args, kwargs)

    outputs = Unchecked(program.graph_module).run(*arguments)
    specs = program.graph_signature.output_specs
    return [o for o, s in zip(outputs, specs, strict=True) if s.kind.name == "USER_OUTPUT"]


def flat(result: Any) -> list[torch.Tensor]:
    """Return one or several tensors as a list."""
    return list(result) if isinstance(result, tuple | list) else [result]


def are_close(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Compare tensors with a limit for two runs of one network."""
    if len(actual) != len(expected):
        return False
    for tensor, golden in zip(actual, expected, strict=True):
        if tensor.shape != golden.shape or tensor.dtype != golden.dtype:
            return False
        if not golden.is_floating_point() or not golden.numel():
            if not torch.equal(tensor, golden):
                return False
            continue
        limit = max(_LIMIT, _STEPS * torch.finfo(golden.dtype).eps)
        limit *= float(golden.abs().nan_to_num(posinf=0.0).max())
        if not torch.allclose(tensor, golden, rtol=0, atol=limit, equal_nan=True):
            return False
    return True
