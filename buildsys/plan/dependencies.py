"""Dependencies of a user's file: imported modules, included headers, external data, images."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError
from buildsys.system import compilers
from buildsys.system.files import (
    IMAGE_SUFFIXES,
    TextCache,
    is_below,
    mapped,
    path_of,
    source_files,
)
from buildsys.system.user_modules import MODULE, code_roots, locate

# Paths are strings here, as a Path costs several times as much and this runs for every target.
Digest = Callable[[str], "str | None"]  # absolute path -> content digest, None if missing
_MODULE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_WITHOUT_REFERENCES = (
    ".arrow", ".csv", ".feather", ".npz", ".parquet", ".pt", ".pt2", ".pth", ".safetensors",
    *EXTENSION_SUFFIXES,
)  # fmt: skip
_warnings_lock = threading.Lock()  # catch_warnings changes the state of the whole process
# StringStringEntryProto of onnx.proto3: key "location", then length and bytes of the value
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x80-\xff]?[\x01-\x7f])", re.DOTALL)


class Import(NamedTuple):
    """One import statement. ``from ..a import b`` has level 2, module ``a`` and names ``(b,)``."""

    level: int
    module: str
    names: tuple[str, ...] = ()


class Dependencies(NamedTuple):
    """All dependencies of some files, direct and indirect."""

    files: dict[str, str | None]  # name -> digest
    outside: list[Import]  # imports not found under the root, without the standard library
    variables: list[str]  # environment variables


class _FileDependencies(NamedTuple):
    """The direct dependencies of one file."""

    digest: str | None
    files: Sequence[str] = ()  # absolute paths
    outside: Sequence[Import] = ()
    variables: Sequence[str] = ()


class SourceTree:
    """Follows imports among the files under ``root``, and in the folders of sources elsewhere.

    If Python could import any of several files, all of them count: an unneeded rebuild costs time,
    a missed one gives a stale result. Modules with computed names and files opened by the code are
    not seen. With ``package``, only modules of that package count, and each is examined once.
    Folders are listed once per instance, so create a new one to see later changes.

    Files are named relative to ``root``, but absolutely in folders of sources named so: two
    checkouts name a file in the same way, and no two files have one name.
    """

    def __init__(
        self,
        root: str,
        digest: Digest,
        texts: TextCache,
        *,
        code: Sequence[str] = (),
        package: str = "",
        prefix: str = "",
    ) -> None:
        """Prepare.

        ``code`` names folders to import from; ``prefix`` begins the names of files below ``root``.
        """
        self._prefix = prefix
        self._root = os.path.normpath(root)
        self._code = code
        self._roots = [self._root] if package else code_roots(self._root, code)
        self._folders = {*self._roots}  # whose modules may be imported
        self._absolute = {os.path.normpath(name) for name in code if os.path.isabs(name)}  # noqa: PTH117
        self._digest = digest
        self._texts = texts
        self._package = package
        self._names: dict[str, frozenset[str]] = {}
        self._examined: dict[str, _FileDependencies] = {}

    def dependencies(self, sources: Iterable[str], modules: Iterable[Import] = ()) -> Dependencies:
        """Collect ``sources`` (relative paths) and ``modules`` with all their dependencies.

        Raises: StageError: the name of a file is not in UTF-8.
        """
        outside: set[Import] = set()
        entries: list[tuple[str, Sequence[str]]] = []  # with folders that it may import from
        for source in sources:
            if not source.endswith(MODULE):
                for file in source_files(self._root, source):
                    entries += self._entries(file, is_absolute=os.path.isabs(source))  # noqa: PTH117
            elif (place := locate(source, self._root, self._code)) and place.root:
                entries += self._entries(place.file)
            else:  # of a library, or installed from elsewhere
                outside.add(Import(0, name := source.removesuffix(MODULE)))
                # an installation may give a folder another name
                if place and f"/{name.replace('.', '/')}" not in place.file:
                    entries += self._entries(place.file)
        entries += [(path, ()) for item in modules for path in self._modules(self._root, item)]
        digests: dict[str, str | None] = {}
        variables: set[str] = set()
        for entry, folders in entries:
            waiting = [entry]
            while waiting:
                path = waiting.pop()
                if path in digests:
                    continue
                direct = self._examined.get(path) or self._examine(path, folders)
                if self._package:  # the folder is the same for all entries
                    self._examined[path] = direct
                digests[path] = direct.digest
                waiting += direct.files
                outside.update(direct.outside)
                variables.update(direct.variables)
        return Dependencies(
            {self.name(path): digest for path, digest in digests.items()},
            sorted(outside),
            sorted(variables),
        )

    def _entries(
        self, file: str, *, is_absolute: bool = False
    ) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield a file and the packages that it is in, with the folders to import from."""
        folder, name = os.path.dirname(file), ""  # noqa: PTH120
        root = folder
        if file.endswith(".py") and (place := locate(file, self._root, self._code)):
            root, name = place.root, place.name
        if not is_below(root, self._root):
            self._folders.add(root)
            self._absolute |= {root} if is_absolute else set()
        packages = self._modules(root, Import(0, name)) if name else ()
        yield from ((path, (folder, root)) for path in dict.fromkeys((file, *packages)))

    def name(self, path: str) -> str:
        """Name a file among all others."""
        if path.startswith(f"{self._root}{os.sep}"):
            return self._prefix + path[len(self._root) + 1 :]
        is_absolute = any(is_below(path, folder) for folder in self._absolute)
        return path if is_absolute else os.path.relpath(path, self._root)

    def _examine(self, path: str, entry_folders: Sequence[str]) -> _FileDependencies:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            problem = f"the name of the file {path!a} is not in UTF-8"
            raise StageError(problem, "rename it") from error
        digest = self._digest(path)
        is_leaf = path.endswith(_WITHOUT_REFERENCES) or path.lower().endswith(IMAGE_SUFFIXES)
        if digest is None or is_leaf:
            return _FileDependencies(digest)
        if not path.endswith(".py"):
            if path.endswith(compilers.C_SUFFIXES):
                names = self._cached(
                    f"include/1:{digest}", lambda: compilers.find_includes(Path(path).read_bytes())
                )
                included = (path_of(os.path.dirname(path), name) for name in names)  # noqa: PTH120
                return _FileDependencies(digest, list(filter(os.path.isfile, included)))
            names = self._cached(f"onnx/1:{digest}", lambda: external_files(path))  # perhaps ONNX
            return _FileDependencies(digest, list(self._inside_root(path, names)))
        imports, variables = self._cached(
            f"python/2:{digest}", lambda: parse_python(Path(path).read_bytes())
        )
        local: list[str] = []
        outside: list[Import] = []
        for item in (Import(level, module, tuple(names)) for level, module, names in imports):
            modules = list(self._local_modules(path, entry_folders, item))
            local += modules
            elsewhere = not (modules or self._package or item.level)
            if elsewhere and item.module.partition(".")[0] not in sys.stdlib_module_names:
                outside.append(item)
        return _FileDependencies(digest, local, outside, variables)

    def _cached(self, name: str, read: Callable[[], object]) -> list:  # type: ignore[type-arg]
        text = self._texts.get(name)
        if text is None:
            self._texts.set(name, text := json.dumps(read()))
        values: list[object] = json.loads(text)
        return values

    def _inside_root(self, path: str, names: Iterable[str]) -> Iterator[str]:
        files = (path_of(os.path.dirname(path), name) for name in names)  # noqa: PTH120
        yield from filter(self._is_followed, files)

    def _is_followed(self, path: str) -> bool:
        return any(is_below(path, folder) for folder in self._folders)

    def _local_modules(
        self, path: str, entry_folders: Sequence[str], item: Import
    ) -> Iterator[str]:
        own = os.path.dirname(path)  # noqa: PTH120
        if item.level:
            yield from self._modules(os.path.normpath(own + "/.." * (item.level - 1)), item)
        elif not self._package:
            for folder in dict.fromkeys((own, *entry_folders, *self._roots)):
                yield from self._modules(folder, item)
        elif item.module.partition(".")[0] == self._package:
            yield from self._modules(self._root, item)

    def _modules(self, folder: str, item: Import) -> Iterator[str]:
        """Yield the files possibly executed by importing ``item`` from ``folder``."""
        if not self._is_followed(folder):
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
        """List the names in ``folder``, none if it does not exist."""
        if folder not in self._names:
            try:
                self._names[folder] = frozenset(os.listdir(folder))  # noqa: PTH208
            except OSError:
                self._names[folder] = frozenset()
        return self._names[folder]


def parse_python(code: bytes) -> tuple[list[Import], list[str]]:
    """Read a module's imports and literal environment variables without executing it.

    Functions are searched as well, and literal names passed to ``import_module``, but not imports
    under TYPE_CHECKING. A file with a syntax error has no dependencies: its own digest is in the
    key, and the stage will report the error.
    """
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's file
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [], []
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
    return imports, sorted(variables)


def _imports_of(node: ast.AST) -> list[Import]:
    if isinstance(node, ast.Import):
        return [Import(0, alias.name) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [Import(node.level, node.module or "", tuple(alias.name for alias in node.names))]
    if isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
        modules = [(name, name.lstrip(".")) for name in _literals(node.args[:1])]
        return [Import(len(name) - len(module), module) for name, module in modules]
    return []


def _variables_of(node: ast.AST) -> list[str]:
    """List X of ``environ["X"]``, ``environ.get("X")``, ``getenv("X")``, ``"X" in environ``."""
    if isinstance(node, ast.Subscript) and _last_name(node.value) == "environ":
        return _literals([node.slice])
    if isinstance(node, ast.Compare) and _last_name(node.comparators[0]) == "environ":
        return _literals([node.left])
    if isinstance(node, ast.Call):
        function = node.func
        owner = _last_name(function.value) if isinstance(function, ast.Attribute) else ""
        if owner == "environ" or _last_name(function) == "getenv":
            return _literals(node.args[:1])
    return []


def _last_name(expression: ast.expr) -> str:
    """Return the last part of a name: ``environ`` of ``os.environ``."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _literals(expressions: list[ast.expr]) -> list[str]:
    constants = [node.value for node in expressions if isinstance(node, ast.Constant)]
    return [value for value in constants if isinstance(value, str)]


def external_files(path: str) -> list[str]:
    """List the external data files of an ONNX graph, relative to its folder.

    Other files have none, and bytes that only look like an entry are harmless.
    Raises: OSError: the file cannot be read.
    """
    locations = set()
    with mapped(path) as content:
        for match in _LOCATION.finditer(content):
            *low, high = match[1]
            size = high << 7 | low[0] & 0x7F if low else high
            location = content[match.end() : match.end() + size]
            locations.add(location.decode(errors="ignore"))
    return sorted(location for location in locations if location and "\0" not in location)
