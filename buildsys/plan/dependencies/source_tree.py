"""Dependencies of a user's file: imported modules, included headers, external data, images."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from buildsys.plan.dependencies.onnx_external_data import external_files
from buildsys.plan.dependencies.python_imports import Import, parse_python
from buildsys.system import compilers
from buildsys.system.files import IMAGE_SUFFIXES, SETTLE_NS, image_files
from buildsys.system.text_cache import TextCache

# Paths are strings here, as a Path costs several times as much and this runs for every target.
Digest = Callable[[str], "str | None"]  # absolute path -> content digest, None if missing
_MODULE_SUFFIXES = (".py", *EXTENSION_SUFFIXES)


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


class FolderListings:
    """Names in folders; one stat per folder replaces one per possible file."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, frozenset[str]]] = {}

    def names(self, folder: str) -> frozenset[str]:
        """Return the names in ``folder``, none if it does not exist."""
        try:
            found = os.stat(folder)  # noqa: PTH116
            if not stat.S_ISDIR(found.st_mode):
                return frozenset()
            known = self._known.get(folder)
            if known is not None and known[:2] == (found.st_mtime_ns, found.st_ino):
                return known[2]
            begun_ns = time.time_ns()
            names = frozenset(os.listdir(folder))  # noqa: PTH208
        except OSError:
            return frozenset()
        if found.st_mtime_ns + SETTLE_NS < begun_ns:  # else a later change may go unnoticed
            self._known[folder] = found.st_mtime_ns, found.st_ino, names
        return names


class SourceTree:
    """Follows imports among the files under ``root``.

    If Python could import any of several files, all of them count: an unneeded rebuild costs time,
    a missed one gives a stale result. Modules with computed names and files opened by the code are
    not found. With ``package``, only modules of that package count. Folders are listed once per
    instance, so create a new one to see later changes.
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
        self._listings = listings or FolderListings()
        self._names: dict[str, frozenset[str]] = {}

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
                found = self._examine(path, folder)
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
            yield from self._existing(folder, "__init__")
        for part in item.module.split(".") if item.module else ():
            yield from self._module(folder, part)
            if part not in self._listed(folder):
                return
            folder = f"{folder}/{part}"
        for name in item.names:
            yield from self._module(folder, name)

    def _module(self, folder: str, name: str) -> Iterator[str]:
        yield from self._existing(folder, name)
        if name in self._listed(folder):
            yield from self._existing(f"{folder}/{name}", "__init__")

    def _existing(self, folder: str, module: str) -> Iterator[str]:
        names = self._listed(folder)
        paths = (f"{folder}/{module}{end}" for end in _MODULE_SUFFIXES if module + end in names)
        yield from filter(os.path.isfile, paths)

    def _listed(self, folder: str) -> frozenset[str]:
        if folder not in self._names:
            self._names[folder] = self._listings.names(folder)
        return self._names[folder]
