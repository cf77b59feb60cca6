"""What a Python source needs from elsewhere, told from its text: modules and environment variables."""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator
from typing import NamedTuple


class Import(NamedTuple):
    """One import statement: ``from ..a import b`` is level 2, module ``a``, names ``[b]``."""

    level: int
    module: str
    names: list[str]


class Needs(NamedTuple):
    """What one file needs."""

    imports: list[Import]
    variables: list[str]  # environment variables that it names literally


def find_needs(code: bytes) -> Needs:
    """Return what a module imports and reads, also inside functions, without executing it.

    Names given literally to ``import_module`` count too. Imports for type checkers alone do not. A file
    that does not parse needs nothing: its own digest is in the key, and the stage will say what is wrong.
    """
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # a bad escape in a user's file is not our message to give
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Needs([], [])
    nodes = list(_executed(tree))
    variables = {name for node in nodes for name in _variables_of(node)}
    return Needs([item for node in nodes for item in _imports_of(node)], sorted(variables))


_quiet = threading.Lock()  # catch_warnings changes the state of the whole process


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        only_types = isinstance(node, ast.If) and _called(node.test) == "TYPE_CHECKING"
        waiting.extend(
            node.orelse if only_types and isinstance(node, ast.If) else ast.iter_child_nodes(node)
        )


def _imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(0, alias.name, [])
    elif isinstance(node, ast.ImportFrom):
        yield Import(node.level, node.module or "", [alias.name for alias in node.names])
    elif isinstance(node, ast.Call) and _called(node.func) in ("import_module", "__import__"):
        for name in _texts(node.args[:1]):
            dots = len(name) - len(name.lstrip("."))
            yield Import(dots, name[dots:], [])


def _variables_of(node: ast.AST) -> Iterator[str]:
    """Yield X of ``os.environ["X"]``, ``os.environ.get("X")``, ``os.getenv("X")`` and ``"X" in os.environ``."""
    if isinstance(node, ast.Subscript) and _called(node.value) == "environ":
        yield from _texts([node.slice])
    elif isinstance(node, ast.Compare) and _called(node.comparators[0]) == "environ":
        yield from _texts([node.left])
    elif isinstance(node, ast.Call):
        of_environ = isinstance(node.func, ast.Attribute) and _called(node.func.value) == "environ"
        if of_environ or _called(node.func) == "getenv":
            yield from _texts(node.args[:1])


def _called(expression: ast.expr) -> str:
    """Return the last part of a name: ``environ`` of ``os.environ``."""
    return (
        expression.attr if isinstance(expression, ast.Attribute) else getattr(expression, "id", "")
    )


def _texts(expressions: list[ast.expr]) -> Iterator[str]:
    for expression in expressions:
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            yield expression.value
