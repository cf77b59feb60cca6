"""Conditions on sizes in a network's source, such as ``length == 9``.

A tracer follows one side of a branch. Sizes on the other side show a wrong graph, but a random draw
seldom meets ``length == 9``. So comparisons with constants and remainders are read from the source,
with everything else in them taken for the size: a guess that costs no more than another case.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn

from buildsys.system.files import in_library

Assigned = Mapping[str, ast.expr]  # local variable -> its value
_STANDARD_LIBRARY = f"{Path(inspect.__file__).parent}/"
Condition = Callable[[int], bool]  # on a size
_STAGE = "buildsys.stages.reference.stage"  # imported before any code of the user
_SIZE = "size"  # the variable of a condition
_MOST_CONDITIONS = 64
_MOST_LAYERS = 16  # about
_LARGEST = 1 << 31
_ARITHMETIC = (
    ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Name, ast.Tuple,
    ast.cmpop, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip
_REFUSED = (ast.Pow, ast.LShift, ast.MatMult, ast.Is, ast.IsNot)  # slow, or not arithmetic


def size_conditions(network: nn.Module, project: Path) -> list[Condition]:
    """List the distinct conditions of a network's source, the project's first."""
    instances: dict[type[nn.Module], list[nn.Module]] = {}
    for module in network.modules():
        for cls in type(module).__mro__[: type(module).__mro__.index(nn.Module)]:
            instances.setdefault(cls, []).append(module)
    conditions: dict[str, Condition] = {}
    for tree, names, objects in _sources(instances, project):
        for expression, assigned in _expressions(tree, {}):
            for text, condition in _conditions(expression, assigned, names, objects):
                conditions.setdefault(text, condition)
                if len(conditions) == _MOST_CONDITIONS:
                    return list(conditions.values())
    return list(conditions.values())


def _sources(
    instances: Mapping[type[nn.Module], Sequence[nn.Module]], project: Path
) -> Iterator[tuple[ast.AST, Mapping[str, Any], Sequence[nn.Module]]]:
    """Yield trees with their global names and layers.

    The project's layers in use come first, then functions of its files, and layers of libraries.
    """
    modules = _modules_below(project)
    own = [cls for cls in instances if cls.__module__ in modules]
    others = [
        cls
        for cls in instances
        if cls not in own and cls.__module__.partition(".")[0] not in ("torch", "builtins")
    ]
    trees: dict[str, ast.Module] = {}
    files = dict.fromkeys((*(cls.__module__ for cls in own), *modules))
    entries: list[type[nn.Module] | str] = [*own, *files, *others]
    for entry in entries:
        name = entry if isinstance(entry, str) else entry.__module__
        names = vars(sys.modules[name])
        try:
            if name not in trees:
                trees[name] = ast.parse(Path(names["__file__"]).read_bytes())
        except (OSError, KeyError, TypeError, SyntaxError, ValueError):  # no source
            continue
        body = [
            node
            for node in trees[name].body
            if _layer(node, names) is (None if isinstance(entry, str) else entry)
        ]
        layers = [] if isinstance(entry, str) else instances[entry]
        yield ast.Module(body, []), names, layers[:: max(len(layers) // _MOST_LAYERS, 1)]


def _modules_below(project: Path) -> list[str]:
    """List the loaded modules in files of a project."""
    root = f"{project.resolve()}/"
    names = list(sys.modules)
    names = names[names.index(_STAGE) :]
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in names}
    return [
        name
        for name, file in files.items()
        if file.endswith(".py")
        and not name.startswith("buildsys.")
        and not _is_library(file)
        and str(Path(file).resolve()).startswith(root)
    ]


def _is_library(file: str) -> bool:
    return in_library(file) or file.startswith(_STANDARD_LIBRARY)


def _layer(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """Find the class of layers defined by a statement, or None."""
    member = names.get(node.name) if isinstance(node, ast.ClassDef) else None
    return member if isinstance(member, type) and issubclass(member, nn.Module) else None


def _expressions(tree: ast.AST, assigned: Assigned) -> Iterator[tuple[ast.expr, Assigned]]:
    """Yield comparisons, remainders, and calls of min and max.

    Constructors are left out: they know no size.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            continue
        inner = _assigned(node) if isinstance(node, ast.FunctionDef) else assigned
        is_limit = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("min", "max")
        )
        is_remainder = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
        if is_limit or is_remainder or isinstance(node, ast.Compare):
            yield node, inner  # type: ignore[misc]  # each of them is an expression
        yield from _expressions(node, inner)


def _assigned(function: ast.FunctionDef) -> Assigned:
    """Collect the arithmetic of variables assigned once: ``half = length // 2``."""
    values: dict[str, list[ast.expr | None]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            values.setdefault(node.target.id, []).append(None)
    return {
        name: expressions[0]
        for name, expressions in values.items()
        if len(expressions) == 1 and isinstance(expressions[0], ast.BinOp | ast.UnaryOp | ast.Call)
    }


def _conditions(
    expression: ast.expr, assigned: Assigned, names: Mapping[str, Any], layers: Sequence[nn.Module]
) -> Iterator[tuple[str, Condition]]:
    """Yield the conditions of an expression as text and function."""
    compared: list[ast.expr] = [expression]
    if isinstance(expression, ast.Call):  # min(size, 16) changes at 16, like size < 16
        pairs = zip(expression.args, expression.args[1:], strict=False)
        compared = [ast.Compare(first, [ast.Lt()], [second]) for first, second in pairs]
    for part in compared:
        for layer in layers or (None,):
            replaced = _Substitution(assigned, names, layer)
            tree = ast.Expression(replaced.visit(deepcopy(part)))
            nodes = list(ast.walk(tree))
            has_constant = any(isinstance(node, ast.Constant) for node in nodes)
            if not replaced.has_size or not has_constant or not all(map(_is_arithmetic, nodes)):
                continue
            text = ast.unparse(tree)
            try:
                code = compile(ast.fix_missing_locations(tree), "<condition>", "eval")
            except (SyntaxError, ValueError, TypeError):
                continue
            yield text, _function(code)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    return isinstance(node, _ARITHMETIC) and not isinstance(node, _REFUSED)


def _function(code: CodeType) -> Condition:
    def condition(size: int) -> bool:
        try:
            return bool(eval(code, {"__builtins__": {}}, {_SIZE: size}))  # noqa: S307 (arithmetic)
        except (ArithmeticError, TypeError, ValueError):
            return False

    return condition


class _Substitution(ast.NodeTransformer):
    """Replacement of names by known values or the size."""

    def __init__(
        self, assigned: Assigned, names: Mapping[str, Any], layer: nn.Module | None
    ) -> None:
        self._assigned, self._names, self._layer = dict(assigned), names, layer
        self.has_size = False

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
            return super().visit(node)
        if isinstance(node, ast.Name) and node.id in self._assigned:
            return self.visit(deepcopy(self._assigned.pop(node.id)))  # pop: it may contain itself
        if isinstance(node, ast.Call) and len(node.args) == 1 and ast.unparse(node.func) == "int":
            return ast.BinOp(self.visit(node.args[0]), ast.FloorDiv(), ast.Constant(1))
        value = self._value(node)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST:
            return ast.Constant(value)
        if isinstance(value, tuple | list) and all(type(entry) is int for entry in value):
            return ast.Tuple([ast.Constant(entry) for entry in value], ast.Load())
        self.has_size = True
        return ast.Name(_SIZE, ast.Load())

    def visit_List(self, node: ast.List) -> Any:
        return self.visit(ast.Tuple(node.elts, ast.Load()))

    def visit_Set(self, node: ast.Set) -> Any:
        return self.visit(ast.Tuple(node.elts, ast.Load()))

    def _value(self, node: ast.AST) -> Any:
        """Find the value of a global name or layer attribute, or None."""
        if isinstance(node, ast.Name):
            return self._layer if node.id == "self" else self._names.get(node.id)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            try:
                return self._value(node.value)[node.slice.value]
            except (TypeError, IndexError, KeyError):
                return None
        if not isinstance(node, ast.Attribute):
            return None
        base = self._value(node.value)
        if isinstance(base, torch.Tensor):
            return tuple(base.shape) if node.attr == "shape" else None
        if not isinstance(base, nn.Module):
            return inspect.getattr_static(base, node.attr, None)  # runs no code
        try:
            return getattr(base, node.attr, None)
        except Exception:  # a property of the user
            return None
