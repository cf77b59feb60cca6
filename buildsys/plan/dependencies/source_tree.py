"""Which files a user's file depends on: itself, imported modules, included headers, data of an ONNX file."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from typing import NamedTuple

from buildsys.plan.dependencies.onnx_external_data import external_files
from buildsys.plan.dependencies.python_imports import Import, Needs, find_needs
from buildsys.system import c_includes
from buildsys.system.image_files import SUFFIXES as IMAGE_SUFFIXES
from buildsys.system.image_files import image_files
from buildsys.system.text_cache import TextCache

Digest = Callable[
    [str], "str | None"
]  # absolute path -> content digest, None when there is no such file
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)  # a module may be compiled
_SETTLE_NS = (
    30_000_000  # a folder that was changed this shortly before it was listed may change unseen
)


class Reach(NamedTuple):
    """All that some files depend on."""

    files: dict[str, str | None]  # relative path -> digest
    outside: list[
        Import
    ]  # imports that no file under the root answers to, without the standard library
    variables: list[str]  # environment variables that the modules read


class Folders:
    """The names in folders: one stat tells whether they are still the same, instead of one per possible file."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int, frozenset[str]]] = {}

    def names(self, folder: str) -> frozenset[str]:
        """Return what lies in a folder, nothing where there is none."""
        try:
            found = os.stat(folder)  # noqa: PTH116 - asked for every target
            if not stat.S_ISDIR(found.st_mode):
                return frozenset()
            known = self._known.get(folder)
            if known is not None and known[:2] == (found.st_mtime_ns, found.st_ino):
                return known[2]
            begun_ns = time.time_ns()
            names = frozenset(os.listdir(folder))  # noqa: PTH208 - only the names are wanted
        except OSError:
            return frozenset()
        if found.st_mtime_ns + _SETTLE_NS < begun_ns:
            self._known[folder] = found.st_mtime_ns, found.st_ino, names
        return names


class SourceTree:
    """Follows imports among the files under ``root``.

    Where Python would take one of several candidates, all that exist are taken: a rebuild too many costs
    time, a missing one gives a stale result. Names that no file under ``root`` answers to are outside.
    Not seen: modules whose name is computed at run time, and files that the code opens itself.
    What it has found out about a file it does not look up again: make a new one to see later changes.
    """

    def __init__(
        self,
        root: str,
        digest: Digest,
        memo: TextCache,
        *,
        package: str = "",
        folders: Folders | None = None,
    ) -> None:
        """Look for modules under ``root`` only; with ``package``, for those of that package only."""
        self._root = os.path.normpath(root)
        self._digest = digest
        self._memo = memo
        self._package = package
        self._folders = folders or Folders()
        self._names: dict[str, frozenset[str]] = {}
        self._known: dict[
            tuple[str, str], tuple[str | None, list[str], list[Import], list[str]]
        ] = {}

    def closure(self, sources: Iterable[str]) -> dict[str, str | None]:
        """Return the digests of sources (relative paths) and of all local modules behind them, by relative path."""
        return self.reach(sources).files

    def reach(self, sources: Iterable[str], modules: Iterable[Import] = ()) -> Reach:
        """Return all that ``sources`` (relative paths) and ``modules`` (imported at the root) depend on.

        A source that ends in a slash is a folder of images, and stands for each of these.
        """
        found: dict[str, str | None] = {}
        outside: set[tuple[int, str, tuple[str, ...]]] = set()
        variables: set[str] = set()
        paths = [path for source in sources for path in self._source_paths(source)]
        paths += [path for item in modules for path in self._modules(self._root, item)]
        for entry in paths:
            folder = self._root if self._package else os.path.dirname(entry)  # noqa: PTH120
            waiting = [entry]
            while waiting:
                path = waiting.pop()
                if path not in found:
                    found[path], behind, elsewhere, read = self._look(path, folder)
                    waiting.extend(behind)
                    outside.update(
                        (item.level, item.module, tuple(item.names)) for item in elsewhere
                    )
                    variables.update(read)
        prefix = len(self._root) + 1
        imports = [Import(level, module, list(names)) for level, module, names in sorted(outside)]
        return Reach(
            {path[prefix:]: digest for path, digest in found.items()}, imports, sorted(variables)
        )

    def _source_paths(self, source: str) -> list[str]:
        path = os.path.normpath(os.path.join(self._root, source))  # noqa: PTH118 - every target
        return image_files(path) if source.endswith("/") else [path]

    def _look(
        self, path: str, entry_folder: str
    ) -> tuple[str | None, list[str], list[Import], list[str]]:
        known = self._known.get((path, entry_folder))
        if known is None:
            known = self._known[path, entry_folder] = self._find(path, entry_folder)
        return known

    def _find(
        self, path: str, entry_folder: str
    ) -> tuple[str | None, list[str], list[Import], list[str]]:
        digest = self._digest(path)
        if (
            digest is None
            or path.endswith((".npz", *EXTENSION_SUFFIXES))
            or path.lower().endswith(IMAGE_SUFFIXES)
        ):
            return digest, [], [], []
        if path.endswith(c_includes.SUFFIXES):
            return digest, list(self._included(path, digest)), [], []
        if not path.endswith(".py"):
            return digest, list(self._beside(path, digest)), [], []
        needs = self._needs(path, digest)
        behind: list[str] = []
        outside: list[Import] = []
        for item in needs.imports:
            local = list(self._local_modules(path, entry_folder, item))
            behind += local
            if not local and not self._package and not item.level:
                outside += (
                    [item] if item.module.partition(".")[0] not in sys.stdlib_module_names else []
                )
        return digest, behind, outside, needs.variables

    def _needs(self, path: str, digest: str) -> Needs:
        known = self._memo.get(name := f"python/2:{digest}")
        if known is None:
            with open(path, "rb") as file:  # noqa: PTH123 - paths are strings here
                known = json.dumps(find_needs(file.read()))
            self._memo.set(name, known)
        imports, variables = json.loads(known)
        return Needs([Import(*item) for item in imports], variables)

    def _beside(self, path: str, digest: str) -> Iterator[str]:
        """Yield the files that hold the tensors of an ONNX file."""
        known = self._memo.get(name := f"onnx/1:{digest}")
        if known is None:
            self._memo.set(name, known := json.dumps(external_files(path)))
        for place in json.loads(known):
            file = os.path.normpath(os.path.join(os.path.dirname(path), place))  # noqa: PTH118, PTH120
            if file.startswith(self._root + os.sep):  # onnx refuses what leaves the folder
                yield file

    def _included(self, path: str, digest: str) -> Iterator[str]:
        """Yield the files that a C source includes by a path relative to its own folder."""
        known = self._memo.get(name := f"include/1:{digest}")
        if known is None:
            with open(path, "rb") as stream:  # noqa: PTH123 - paths are strings here
                known = json.dumps(c_includes.find_includes(stream.read()))
            self._memo.set(name, known)
        for place in json.loads(known):
            file = os.path.normpath(os.path.join(os.path.dirname(path), place))  # noqa: PTH118, PTH120
            if file.startswith(self._root + os.sep) and os.path.isfile(file):  # noqa: PTH113
                yield file

    def _local_modules(self, path: str, entry_folder: str, item: Import) -> Iterator[str]:
        own = os.path.dirname(path)  # noqa: PTH120
        if item.level:
            above = os.path.normpath(os.path.join(own, *[".."] * (item.level - 1)))  # noqa: PTH118
            yield from self._modules(above, item)
        elif not self._package or item.module.partition(".")[0] == self._package:
            absolute = (
                (self._root,) if self._package else dict.fromkeys((own, entry_folder, self._root))
            )
            for folder in absolute:
                yield from self._modules(folder, item)

    def _modules(self, folder: str, item: Import) -> Iterator[str]:
        """Yield the files that running this import from ``folder`` may execute."""
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
        for suffix in _SUFFIXES:
            if module + suffix in names and os.path.isfile(path := f"{folder}/{module}{suffix}"):  # noqa: PTH113
                yield path

    def _listed(self, folder: str) -> frozenset[str]:
        if folder not in self._names:
            self._names[folder] = self._folders.names(folder)
        return self._names[folder]
