"""Dependencies of a user's file: imported modules, included headers, external data, images."""

from __future__ import annotations

import ast
import json
import os
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from buildsys.system import compilers
from buildsys.system.files import IMAGE_SUFFIXES, SETTLE_NS, image_files
from buildsys.system.protobuf import byte_fields, opened
from buildsys.system.text_cache import TextCache

# Paths are strings here, as a Path costs several times as much and this runs for every target.
Digest = Callable[[str], "str | None"]  # absolute path -> content digest, None if missing
# folder -> mtime, inode and names; one stat per folder replaces one per possible file
FolderListings = dict[str, tuple[int, int, frozenset[str]]]
_MODULE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_warnings_lock = threading.Lock()  # catch_warnings changes the state of the whole process
# field numbers in onnx.proto3 of the messages through which a tensor can be reached
_FIELDS = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_KEY, _VALUE, _LOCATION = 1, 2, b"location"


class Import(NamedTuple):
    """One import statement.

    ``from ..a import b`` has level 2, module ``a`` and names ``[b]``.
    """

    level: int
    module: str
    names: list[str]


class Dependencies(NamedTuple):
    """All dependencies of some files, direct and indirect."""

    files: dict[str, str | None]  # relative path -> digest
    outside: list[Import]  # imports not found under the root, without the standard library
    variables: list[str]  # environment variables


class _FileDependencies(NamedTuple):
    """The direct dependencies of one file."""

    digest: str | None
    files: Sequence[str] = ()  # absolute paths
    outside: Sequence[Import] = ()
    variables: Sequence[str] = ()


class SourceTree:
    """Follows imports among the files under ``root``.

    If Python could import any of several files, all of them count: an unneeded rebuild costs time,
    a missed one gives a stale result. Modules with computed names and files opened by the code are
    not found. With ``package``, only modules of that package count, and each is examined once.
    Folders are listed once per instance, so create a new one to see later changes.
    """

    def __init__(
        self,
        root: str,
        digest: Digest,
        texts: TextCache,
        *,
        package: str = "",
        listings: FolderListings | None = None,
    ) -> None:
        self._root = os.path.normpath(root)
        self._digest = digest
        self._texts = texts
        self._package = package
        self._listings = {} if listings is None else listings
        self._names: dict[str, frozenset[str]] = {}
        self._examined: dict[str, _FileDependencies] = {}

    def dependencies(self, sources: Iterable[str], modules: Iterable[Import] = ()) -> Dependencies:
        """Return ``sources`` (relative paths) and ``modules`` with all their dependencies.

        A source ending in a slash is a folder and stands for all images in it.
        """
        entries: list[str] = []
        for source in sources:
            path = os.path.normpath(os.path.join(self._root, source))  # noqa: PTH118
            entries += image_files(path) if source.endswith("/") else [path]
        entries += [path for item in modules for path in self._modules(self._root, item)]
        digests: dict[str, str | None] = {}
        outside: set[tuple[int, str, tuple[str, ...]]] = set()
        variables: set[str] = set()
        for entry in entries:
            folder = self._root if self._package else os.path.dirname(entry)  # noqa: PTH120
            waiting = [entry]
            while waiting:
                path = waiting.pop()
                if path in digests:
                    continue
                found = self._examined.get(path) or self._examine(path, folder)
                if self._package:  # the folder is the same for all entries
                    self._examined[path] = found
                digests[path] = found.digest
                waiting += found.files
                outside.update((i.level, i.module, tuple(i.names)) for i in found.outside)
                variables.update(found.variables)
        prefix = len(self._root) + 1
        return Dependencies(
            {path[prefix:]: digest for path, digest in digests.items()},
            [Import(level, module, list(names)) for level, module, names in sorted(outside)],
            sorted(variables),
        )

    def _examine(self, path: str, entry_folder: str) -> _FileDependencies:
        digest = self._digest(path)
        data = (".npz", *EXTENSION_SUFFIXES)
        if digest is None or path.endswith(data) or path.lower().endswith(IMAGE_SUFFIXES):
            return _FileDependencies(digest)
        if path.endswith(compilers.C_SUFFIXES):
            names = self._cached(
                f"include/1:{digest}", lambda: compilers.find_includes(Path(path).read_bytes())
            )
            included = list(filter(os.path.isfile, self._inside_root(path, names)))
            return _FileDependencies(digest, included)
        if not path.endswith(".py"):  # perhaps an ONNX file; onnx rejects data outside its folder
            external = self._cached(f"onnx/1:{digest}", lambda: external_files(path))
            return _FileDependencies(digest, list(self._inside_root(path, external)))
        imports, variables = self._cached(
            f"python/2:{digest}", lambda: parse_python(Path(path).read_bytes())
        )
        local: list[str] = []
        outside: list[Import] = []
        for item in (Import(*fields) for fields in imports):
            modules = list(self._local_modules(path, entry_folder, item))
            local += modules
            elsewhere = not (modules or self._package or item.level)
            if elsewhere and item.module.partition(".")[0] not in sys.stdlib_module_names:
                outside.append(item)
        return _FileDependencies(digest, local, outside, variables)

    def _cached(self, name: str, read: Callable[[], object]) -> list:  # type: ignore[type-arg]
        text = self._texts.get(name)
        if text is None:
            self._texts.set(name, text := json.dumps(read()))
        found: list[object] = json.loads(text)
        return found

    def _inside_root(self, path: str, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            joined = os.path.join(os.path.dirname(path), name)  # noqa: PTH118, PTH120
            file = os.path.normpath(joined)
            if file.startswith(self._root + os.sep):
                yield file

    def _local_modules(self, path: str, entry_folder: str, item: Import) -> Iterator[str]:
        own = os.path.dirname(path)  # noqa: PTH120
        if item.level:
            yield from self._modules(os.path.normpath(own + "/.." * (item.level - 1)), item)
        elif not self._package:
            for folder in dict.fromkeys((own, entry_folder, self._root)):
                yield from self._modules(folder, item)
        elif item.module.partition(".")[0] == self._package:
            yield from self._modules(self._root, item)

    def _modules(self, folder: str, item: Import) -> Iterator[str]:
        """Yield the files possibly executed by importing ``item`` from ``folder``."""
        if folder != self._root and not folder.startswith(self._root + os.sep):
            return
        if item.level:
            yield from self._module(folder, "__init__")
        for part in item.module.split(".") if item.module else ():
            yield from self._module(folder, part)
            if part not in self._listed(folder):
                return
            folder = f"{folder}/{part}"
        for name in item.names:
            yield from self._module(folder, name)

    def _module(self, folder: str, name: str) -> Iterator[str]:
        """Yield the existing files of a module or package in a folder."""
        places = [(folder, name)]
        if name in self._listed(folder):
            places.append((f"{folder}/{name}", "__init__"))
        for place, module in places:
            names = self._listed(place)
            paths = (f"{place}/{module}{end}" for end in _MODULE_SUFFIXES if module + end in names)
            yield from filter(os.path.isfile, paths)

    def _listed(self, folder: str) -> frozenset[str]:
        """Return the names in ``folder``, none if it does not exist."""
        if folder in self._names:
            return self._names[folder]
        names: frozenset[str] = frozenset()
        with suppress(OSError):
            found = os.stat(folder)  # noqa: PTH116
            known = self._listings.get(folder)
            if known is not None and known[:2] == (found.st_mtime_ns, found.st_ino):
                names = known[2]
            elif stat.S_ISDIR(found.st_mode):
                begun_ns = time.time_ns()
                names = frozenset(os.listdir(folder))  # noqa: PTH208
                if found.st_mtime_ns + SETTLE_NS < begun_ns:  # else a later change may go unnoticed
                    self._listings[folder] = found.st_mtime_ns, found.st_ino, names
        self._names[folder] = names
        return names


class PythonFile(NamedTuple):
    """The dependencies of one file."""

    imports: list[Import]
    variables: list[str]  # environment variables with literal names


_NODES_OF_INTEREST = (ast.Import, ast.ImportFrom, ast.Call, ast.Subscript, ast.Compare)
_WORDS_OF_EXPRESSIONS = (b"environ", b"getenv", b"import_module", b"__import__", b"coding")
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # fields with statements


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
    # most files have no expression of interest, and expressions are nine tenths of their nodes
    is_plain = code.isascii() and not any(word in code for word in _WORDS_OF_EXPRESSIONS)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _NODES_OF_INTEREST):
            imports += _imports_of(node)
            variables.update(_variables_of(node))
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif is_plain:
            for field in _BLOCKS:
                waiting += getattr(node, field, ())
        else:
            waiting += ast.iter_child_nodes(node)
    return PythonFile(imports, sorted(variables))


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


def external_files(path: str) -> list[str]:
    """Return the external data files, relative to the folder of ``path``.

    An invalid file has none: its own digest is in the key, and the stage will report the error.
    Raises: OSError: the file cannot be read.
    """
    locations = set()
    with opened(path) as content:
        waiting = [("model", 0, len(content))]
        try:
            while waiting:
                message, begin, end = waiting.pop()
                inner = _FIELDS[message]
                for number, start, stop in byte_fields(content, begin, end):
                    if inner.get(number) == "entry":
                        fields = byte_fields(content, start, stop)
                        entry = {field: content[first:last] for field, first, last in fields}
                        if entry.get(_KEY) == _LOCATION:
                            locations.add(entry.get(_VALUE, b"").decode())
                    elif number in inner:
                        waiting.append((inner[number], start, stop))
        except (IndexError, ValueError):  # truncated, or not protobuf
            return []
    return sorted(locations)
