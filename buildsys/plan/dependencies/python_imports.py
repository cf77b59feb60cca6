"""Imports and environment variables of a Python file, found in its text."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator
from typing import NamedTuple


class Import(NamedTuple):
    """One import statement.

    ``from ..a import b`` has level 2, module ``a`` and names ``[b]``.
    """

    level: int
    module: str
    names: list[str]


class PythonFile(NamedTuple):
    """The dependencies of one file."""

    imports: list[Import]
    variables: list[str]  # environment variables with literal names


def parse_python(code: bytes) -> PythonFile:
    """Return the dependencies of a module without executing it.

    Functions are searched as well, and literal names passed to ``import_module``, but not imports
    under TYPE_CHECKING. A file with a syntax error has no dependencies: its own digest is in the
    key, and the stage will report the error.
    """
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's file
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return PythonFile([], [])
    imports: list[Import] = []
    variables: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        imports += _imports_of(node)
        variables.update(_variables_of(node))
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)
    return PythonFile(imports, sorted(variables))


_warnings_lock = threading.Lock()  # catch_warnings changes the state of the whole process


def _imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(0, alias.name, [])
    elif isinstance(node, ast.ImportFrom):
        yield Import(node.level, node.module or "", [alias.name for alias in node.names])
    elif isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
        for name in _literals(node.args[:1]):
            module = name.lstrip(".")
            yield Import(len(name) - len(module), module, [])


def _variables_of(node: ast.AST) -> Iterator[str]:
    """Yield X of ``environ["X"]``, ``environ.get("X")``, ``getenv("X")``, ``"X" in environ``."""
    if isinstance(node, ast.Subscript) and _last_name(node.value) == "environ":
        yield from _literals([node.slice])
    elif isinstance(node, ast.Compare) and _last_name(node.comparators[0]) == "environ":
        yield from _literals([node.left])
    elif isinstance(node, ast.Call):
        function = node.func
        owner = _last_name(function.value) if isinstance(function, ast.Attribute) else ""
        if owner == "environ" or _last_name(function) == "getenv":
            yield from _literals(node.args[:1])


def _last_name(expression: ast.expr) -> str:
    """Return the last part of a name: ``environ`` of ``os.environ``."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _literals(expressions: list[ast.expr]) -> Iterator[str]:
    for expression in expressions:
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            yield expression.value
