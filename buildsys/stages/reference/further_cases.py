"""Further golden cases, for ``validate`` and ``verify``: drawn sizes and other seeds.

The shape cases see four sizes and one set of values. A wrong branch between them would pass.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from buildsys.manifest.shape_cases import DimRange, Dims, concrete_shape
from buildsys.system.files import in_library
from buildsys.workers.job import Job

if TYPE_CHECKING:
    from torch import nn

Condition = Callable[[int], bool]  # on a size
Assigned = Mapping[str, ast.expr]  # local variable -> its value
_SCANNED = 1024  # values of a range that a condition is evaluated for
_DRAWN_SHARE = 0.25  # share of the shape cases' elements
_LARGE = 4096  # elements of all inputs


class FurtherCase(NamedTuple):
    """One case with its sizes, and the origin of its values."""

    name: str
    dims: Dims
    values: Mapping[str, Any]  # golden_input's arguments: case, seed


def further_cases(job: Job, module: nn.Module | None) -> Iterator[FurtherCase]:
    """Yield the planned cases: drawn sizes, sizes suggested by ``module``, other seeds.

    Large inputs have few: the smallest new size, and other drawn sizes only up to a quarter of the
    shape cases.
    """
    options, seed = job.options.get("further"), job.options["source"]["seed"]
    if options is None:
        return

    def elements(dims: Dims) -> int:
        return input_elements(job, dims)

    planned, spans = list(job.options["cases"].values()), options["spans"]
    is_large = elements(options["dims"]) > _LARGE
    sizes: list[Dims] = []
    if options["sizes"]:
        budget = sum(map(elements, planned)) * _DRAWN_SHARE
        drawn = draw_sizes(spans, planned, seed, smallest_first=is_large)
        for dims in sorted(islice(drawn, options["drawn"]), key=elements):
            budget -= elements(dims)
            if budget >= 0 or not sizes or elements(dims) <= _LARGE:
                sizes.append(dims)
        if module is not None:
            conditions = size_conditions(module, job.project)
            sizes += suggested_sizes(spans, [*planned, *sizes], conditions)
    for name, dims in zip(options["sizes"], sizes, strict=False):
        yield FurtherCase(name, dims, {"case": name, "seed": seed})
    for name in options["values"]:
        kind, _, number = name.partition("-")
        if kind == "seed" and not (is_large and (number == "2" or sizes)):
            values = {"case": "min", "seed": seed + int(number)}  # callables know the case
            yield FurtherCase(name, options["dims"], values)


def value_dims(job: Job) -> Dims:
    """Choose the sizes for special values: the largest of small inputs, or else the least."""
    planned = job.options["cases"].values()
    small = [dims for dims in planned if input_elements(job, dims) <= _LARGE]
    return max(small, key=lambda d: input_elements(job, d), default=job.options["further"]["dims"])


def input_elements(job: Job, dims: Dims) -> int:
    """Count the elements of all inputs."""
    shapes = (tensor["shape"] for tensor in job.options["inputs"].values())
    return sum(prod(concrete_shape(shape, dims)) for shape in shapes)


def draw_sizes(
    spans: Mapping[str, DimRange],
    tested: Iterable[Dims],
    seed: int,
    *,
    smallest_first: bool = False,
) -> Iterator[Dims]:
    """Yield distinct sizes outside ``tested``, most of them cheap.

    ``spans`` have ``min``, ``max`` and ``multiple_of``. The sizes end with the ranges. The first
    dimension has the largest of the first sizes, since shape cases seldom have it: a network may
    treat portrait and landscape images differently.
    """
    seen = [dict(dims) for dims in tested]
    key = int.from_bytes(hashlib.sha256(",".join(spans).encode()).digest()[:16], "little")
    stream = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, key])))
    misses, rising = 0, [*spans][::-1]
    while misses < 100:
        dims: Dims = {}
        for name, drawn in zip(rising, sorted(stream.random(len(spans))), strict=True):
            allowed = _allowed(spans[name])
            # the cube makes half of all sizes fall into the lowest eighth of the range
            position = 0 if smallest_first else int(len(allowed) * drawn**3)
            taken = {other[name] for other in seen}
            free = [n for n in allowed[position : position + 8] if n not in taken]
            unlike = [n for n in free if n not in dims.values()]
            dims[name] = next(iter((*unlike, *free, allowed[position])))
        smallest_first, rising = False, [str(name) for name in stream.permutation(rising)]
        dims = {name: dims[name] for name in spans}
        if dims in seen:
            misses += 1
            continue
        misses = 0
        seen.append(dims)
        yield dims


def suggested_sizes(
    spans: Mapping[str, DimRange], tested: Sequence[Dims], conditions: Sequence[Condition]
) -> Iterator[Dims]:
    """Yield the smallest sizes on the untested side of conditions."""
    new_sizes: dict[str, list[int]] = {}
    for name, span in spans.items():
        sizes = [dims[name] for dims in tested]
        allowed = _allowed(span)
        scanned = [*allowed[:_SCANNED], *allowed[_SCANNED :: max(len(allowed) // _SCANNED, 1)]]
        new_sizes[name] = []
        for holds in conditions:
            met = {holds(size) for size in sizes}
            if len(met) > 1:
                continue
            new = next((size for size in scanned if holds(size) not in met), None)
            if new is not None:
                sizes.append(new)
                new_sizes[name].append(new)
    for index in range(max(map(len, new_sizes.values()), default=0)):
        yield {
            name: column[index] if index < len(column) else int(spans[name]["min"] or 0)
            for name, column in new_sizes.items()
        }


def _allowed(span: DimRange) -> range:
    low, high, step = int(span["min"] or 0), int(span["max"] or 0), int(span["multiple_of"] or 1)
    return range(low, high + 1, step)


_STAGE = "buildsys.stages.reference.stage"  # imported before any code of the user
_MOST_CONDITIONS, _MOST_LAYERS = 64, 16
_ALLOWED = (
    ast.Compare, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Attribute, ast.Subscript,
    ast.Call, ast.Tuple, ast.List, ast.Set,
    ast.cmpop, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
_REFUSED = (ast.Pow, ast.LShift, ast.MatMult, ast.Is, ast.IsNot)  # slow, or not arithmetic
_FUNCTIONS = {"int": int, "min": min, "max": max}
_SIZE = "_size_"


def size_conditions(network: nn.Module, project: Path) -> list[Condition]:
    """List the distinct conditions on sizes in a network's source, the project's first.

    A tracer follows one side of a branch. Sizes on the other side show a wrong graph, but a random
    draw seldom meets ``length == 9``. So comparisons, remainders and limits are read from the
    source, with everything unknown in them taken for the size: a guess that costs no more than
    another case.
    """
    conditions: dict[str, Condition] = {}
    for body, module, layers in _sources(network, project):
        for node, assigned in _expressions(body, {}):
            for layer in layers[:: max(len(layers) // _MOST_LAYERS, 1)]:
                with suppress(SyntaxError, ValueError, TypeError, RecursionError):
                    names = _Names(vars(module), self=layer)
                    text = ast.unparse(_Folding(assigned, names).visit(deepcopy(node)))
                    if _SIZE in text and text not in conditions:
                        conditions[text] = partial(_holds, compile(text, "<size>", "eval"))
                if len(conditions) == _MOST_CONDITIONS:
                    return list(conditions.values())
    return list(conditions.values())


def _holds(code: CodeType, size: int) -> bool:
    try:
        names = {**_FUNCTIONS, "__builtins__": {}, _SIZE: size}
        return bool(eval(code, names))  # noqa: S307 (only arithmetic)
    except Exception:  # of an operator on unsuitable values
        return False


def _sources(
    network: nn.Module, project: Path
) -> Iterator[tuple[ast.AST, ModuleType, Sequence[nn.Module | None]]]:
    """Yield trees with their modules and layers: the project's, its functions, and libraries'."""
    names = list(sys.modules)
    root, stdlib = f"{project.resolve()}/", f"{Path(ast.__file__).parent}/"
    own = {}
    for name in names[names.index(_STAGE) if _STAGE in names else 0 :]:
        file = getattr(sys.modules[name], "__file__", None) or ""
        is_library = in_library(file) or file.startswith(stdlib) or name.startswith("buildsys.")
        if file.endswith(".py") and not is_library and Path(file).resolve().is_relative_to(root):
            own[name] = sys.modules[name]
    layers: dict[type, list[nn.Module]] = {}
    for layer in network.modules():
        for cls in type(layer).__mro__:
            if cls.__module__.partition(".")[0] not in ("torch", "builtins"):
                layers.setdefault(cls, []).append(layer)
    for is_own in (True, False):
        for cls in layers:
            if (cls.__module__ in own) is is_own:
                with suppress(OSError, TypeError, SyntaxError):  # no source
                    text = textwrap.dedent(inspect.getsource(cls))
                    yield ast.parse(text), sys.modules[cls.__module__], layers[cls]
        for module in own.values() if is_own else ():
            with suppress(OSError, SyntaxError, ValueError):
                tree = ast.parse(Path(str(module.__file__)).read_bytes())
                functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
                yield ast.Module(list(functions), []), module, [None]


def _expressions(tree: ast.AST, assigned: Assigned) -> Iterator[tuple[ast.expr, Assigned]]:
    """Yield comparisons, remainders and limits, with the local variables assigned once."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            if node.name == "__init__":  # constructors know no size
                continue
            stored = [n.id for n in ast.walk(node)
                      if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]  # fmt: skip
            assigned = {
                statement.targets[0].id: statement.value
                for statement in ast.walk(node)
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
                if stored.count(statement.targets[0].id) == 1 and _is_arithmetic(statement.value)
            }
        parts = []
        if isinstance(node, ast.Compare) or (
            isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
        ):
            parts = [node]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("min", "max"):
            # min(size, 16) changes at 16, like size < 16
            pairs = zip(node.args, node.args[1:], strict=False)
            parts = [ast.Compare(first, [ast.Lt()], [second]) for first, second in pairs]
        yield from ((part, assigned) for part in parts if _is_arithmetic(part))
        yield from _expressions(node, assigned)


def _is_arithmetic(tree: ast.AST) -> bool:
    nodes = list(ast.walk(tree))
    return all(isinstance(n, _ALLOWED) and not isinstance(n, _REFUSED) for n in nodes)


class _Unknown:
    """Everything unknown in an expression, such as ``x`` of ``x.shape[1]``."""

    def __getattr__(self, name: str) -> _Unknown:
        return self

    def __getitem__(self, index: object) -> _Unknown:
        return self


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> _Unknown:
        return _Unknown()


class _Folding(ast.NodeTransformer):
    """Replace the network's integers by their values, and everything unknown by the size."""

    def __init__(self, assigned: Assigned, names: Mapping[str, Any]) -> None:
        self._assigned, self._names = assigned, names

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Fold the arguments of int, min and max; other results are unknown."""
        if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])
        return ast.Name(_SIZE)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Fold a variable, whose value may contain itself, or a global name."""
        if node.id not in self._assigned:
            return self.visit_Attribute(node)
        others = {name: value for name, value in self._assigned.items() if name != node.id}
        value: ast.expr = _Folding(others, self._names).visit(deepcopy(self._assigned[node.id]))
        return value

    def visit_Attribute(self, node: ast.expr) -> ast.expr:
        """Fold ``self.window``, ``self.kernel_size[0]`` or a global name."""
        value = None
        with suppress(Exception):
            value = eval(ast.unparse(node), {"__builtins__": {}}, self._names)  # noqa: S307
        if type(value) is int:
            return ast.Constant(value)
        if isinstance(value, tuple | list) and all(type(member) is int for member in value):
            return ast.Tuple([ast.Constant(member) for member in value])
        is_layer = hasattr(type(value), "named_modules")
        is_size = isinstance(value, _Unknown) or (callable(value) and not is_layer)
        return ast.Name(_SIZE) if is_size else ast.Constant(None)

    visit_Subscript = visit_Attribute  # noqa: N815 (named by ast)
