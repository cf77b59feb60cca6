"""Which files a Python source depends on: itself and the project's own modules that it imports, found by AST."""

from __future__ import annotations

import ast
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

Digest = Callable[[str], "str | None"]  # absolute path -> content digest, None when there is no such file


class Memo(Protocol):
    """Remembers the imports of a file by the file's digest."""

    def get(self, digest: str) -> str | None:
        """Return what was stored for a digest."""

    def set(self, digest: str, imports: str) -> None:
        """Store the imports of a file."""


class Import(NamedTuple):
    """One import statement: ``from ..a import b`` is level 2, module ``a``, names ``[b]``."""

    level: int
    module: str
    names: list[str]


class SourceTree:
    """Follows imports among the files under ``root``.

    Where Python would take one of several candidates, all that exist are taken: a rebuild too many costs
    time, a missing one gives a stale result. Names that no file under ``root`` answers to are external.
    Not seen: modules whose name is computed at run time, and files that the code opens itself.
    What it has found out about a file it does not look up again: make a new one to see later changes.
    """

    def __init__(self, root: str, digest: Digest, memo: Memo, *, package: str = "") -> None:
        """Look for modules under ``root`` only; with ``package``, for those of that package only."""
        self._root = os.path.normpath(root)
        self._digest = digest
        self._memo = memo
        self._package = package
        self._known: dict[tuple[str, str], tuple[str | None, list[str]]] = {}

    def closure(self, sources: Iterable[str]) -> dict[str, str | None]:
        """Return the digests of sources (relative paths) and of all local modules behind them, by relative path."""
        found: dict[str, str | None] = {}
        for source in sources:
            path = os.path.normpath(os.path.join(self._root, source))  # noqa: PTH118 - called for every target
            self._follow(path, found)
        prefix = len(self._root) + 1
        return {path[prefix:]: digest for path, digest in found.items()}

    def _follow(self, entry: str, found: dict[str, str | None]) -> None:
        folder = os.path.dirname(entry)  # noqa: PTH120
        waiting = [entry]
        while waiting:
            path = waiting.pop()
            if path not in found:
                found[path], behind = self._look(path, self._root if self._package else folder)
                waiting.extend(behind)

    def _look(self, path: str, entry_folder: str) -> tuple[str | None, list[str]]:
        known = self._known.get((path, entry_folder))
        if known is None:
            digest, behind = self._digest(path), []
            if digest is not None and path.endswith(".py"):
                behind = list(self._local_modules(path, entry_folder, self._imports(path, digest)))
            known = self._known[path, entry_folder] = digest, behind
        return known

    def _imports(self, path: str, digest: str) -> list[Import]:
        known = self._memo.get(digest)
        if known is None:
            with open(path, "rb") as file:  # noqa: PTH123 - paths are strings here
                known = json.dumps(list(find_imports(file.read())))
            self._memo.set(digest, known)
        return [Import(*item) for item in json.loads(known)]

    def _local_modules(self, path: str, entry_folder: str, imports: Iterable[Import]) -> Iterator[str]:
        own = os.path.dirname(path)  # noqa: PTH120
        absolute = (self._root,) if self._package else dict.fromkeys((own, entry_folder, self._root))
        for item in imports:
            if item.level:
                above = os.path.normpath(os.path.join(own, *[".."] * (item.level - 1)))  # noqa: PTH118
                yield from self._modules(above, item)
            elif not self._package or item.module.partition(".")[0] == self._package:
                for folder in absolute:
                    yield from self._modules(folder, item)

    def _modules(self, folder: str, item: Import) -> Iterator[str]:
        """Yield the files that running this import from ``folder`` may execute."""
        if folder != self._root and not folder.startswith(self._root + os.sep):
            return
        if item.level:
            yield from _existing(f"{folder}/__init__.py")
        for part in item.module.split(".") if item.module else ():
            folder = f"{folder}/{part}"
            yield from _existing(f"{folder}.py", f"{folder}/__init__.py")
            if not os.path.isdir(folder):  # noqa: PTH112
                return
        for name in item.names:
            yield from _existing(f"{folder}/{name}.py", f"{folder}/{name}/__init__.py")


def find_imports(code: bytes) -> Iterator[Import]:
    """Yield the import statements of a module, also those inside functions, without executing it.

    Names given literally to ``import_module`` count too. Imports for type checkers alone do not. A file
    that does not parse has no imports: its own digest is in the key, and the stage will say what is wrong.
    """
    try:
        with _quiet, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a bad escape in a user's file is not our message to give
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting.extend(node.orelse)
            continue
        waiting.extend(ast.iter_child_nodes(node))
        yield from _imports_of(node)


_quiet = threading.Lock()  # catch_warnings changes the state of the whole process


def _imports_of(node: ast.AST) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(0, alias.name, [])
    elif isinstance(node, ast.ImportFrom):
        yield Import(node.level, node.module or "", [alias.name for alias in node.names])
    elif isinstance(node, ast.Call) and node.args and _is_import_function(node.func):
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            dots = len(name.value) - len(name.value.lstrip("."))
            yield Import(dots, name.value[dots:], [])


def _is_import_function(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _existing(*paths: str) -> Iterator[str]:
    return (path for path in paths if os.path.isfile(path))  # noqa: PTH113
