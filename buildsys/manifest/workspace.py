"""The files of one load, stamped before they are read once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from buildsys.errors import ManifestError
from buildsys.manifest.problem import Problem, show_value
from buildsys.manifest.value_tree import ValueNode, with_origins
from buildsys.manifest.yaml_reader import MAX_BYTES, Positions, read_positions, read_yaml
from buildsys.system.files import Stamp, open_regular, sha256_of, stamp


class Workspace:
    """The project's folder as one load sees it.

    Every path accessed is recorded: a cached result is valid while its paths have the same stamps.
    """

    def __init__(self, root: Path, configs: Path, links_into: Path | None = None) -> None:
        self.root = root
        self._prefix = f"{root}{os.sep}"
        self.links_into = links_into or root  # allowed target of links
        self.configs = configs
        self.stamps: dict[str, Stamp | None] = {}
        self.digests: dict[str, tuple[Stamp, str]] = {}  # of weights, kept from load to load
        self._documents: dict[Path, ValueNode | ManifestError] = {}
        self._contents: dict[Path, bytes] = {}
        self._positions: dict[Path, Positions] = {}
        self._recorded: set[str] = set()
        self._shown: dict[Path, Path] = {}
        self._located: dict[str, Path | str] = {}
        self._inside: dict[Path, bool] = {}  # folders
        # Python file -> its global names, and the problem of one that cannot be parsed
        self.python_names: dict[str, tuple[list[str], str]] = {}

    @contextmanager
    def recording(self) -> Iterator[set[str]]:
        """Collect the paths accessed in the block."""
        before, self._recorded = self._recorded, set()
        try:
            yield self._recorded
        finally:
            self._recorded = before

    def shown(self, path: Path) -> Path:
        """Return a path relative to the project, if inside."""
        shown = self._shown.get(path)
        if shown is None:  # as text: relative_to() is slow, and there may be thousands
            text = str(path)
            inside = text.startswith(self._prefix)
            shown = self._shown[path] = Path(text[len(self._prefix) :]) if inside else path
        return shown

    def stamp(self, path: Path) -> Stamp | None:
        """Record a path and return its stamp, or None."""
        name = str(self.shown(path))
        self._recorded.add(name)
        if name not in self.stamps:
            self.stamps[name] = stamp(path)
        return self.stamps[name]

    def exists(self, path: Path) -> bool:
        """Record a path and return true if it exists."""
        return self.stamp(path) is not None

    def locate(self, name: str) -> Path | str:
        """Return the absolute path of a project file, or a problem.

        It may be a link to another file of the project, or into ``links_into``.
        """
        if name not in self._located:
            self._located[name] = self._locate(name)
        return self._located[name]

    def _locate(self, name: str) -> Path | str:
        if not name.strip() or "\0" in name:
            return f"{show_value(name)} is not a path"
        if Path(name).is_absolute():
            return f"path {show_value(name)} is absolute"
        try:
            real = (self.root / name).resolve()
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before 3.13
            return f"path {show_value(name)} cannot be followed ({error})"
        if not any(
            real.is_relative_to(folder.resolve()) for folder in (self.root, self.links_into)
        ):
            return f"path {show_value(name)} leaves the project"
        return self.root / name

    def document(self, path: Path) -> ValueNode:
        """Return the data of a YAML file.

        Raises: ManifestError: the file cannot be read or is not valid YAML.
        """
        shown = self.shown(path)
        self.stamp(path)
        if shown not in self._documents:
            try:
                self._check_link(path, shown)
                self._contents[shown] = _content(path, shown)
                data = read_yaml(shown, self._contents[shown])
                self._documents[shown] = with_origins(data, shown)
            except ManifestError as error:
                self._documents[shown] = error
        found = self._documents[shown]
        if isinstance(found, ManifestError):
            raise found
        return found

    def release(self, path: Path) -> None:
        """Drop the content of a file, 20 kB of a manifest; it is read again if needed."""
        shown = self.shown(path)
        self._documents.pop(shown, None)
        self._contents.pop(shown, None)
        self._positions.pop(shown, None)

    def sha256(self, path: Path) -> str:
        """Return the digest of a file, cached by its stamp."""
        name, current = str(self.shown(path)), self.stamp(path)
        known = self.digests.get(name)
        if known and known[0] == current:
            return known[1]
        digest = sha256_of(path)
        if current is not None:
            self.digests[name] = current, digest
        return digest

    def errors(self, problems: Iterable[Problem | ManifestError]) -> list[ManifestError]:
        """Return problems as errors with line and column; errors are passed through."""
        errors = []
        for problem in problems:
            if not isinstance(problem, ManifestError):
                file, path = problem.origin
                mark = self._marks(file).find(path, of_key=problem.of_key) or (None, None)
                problem = ManifestError(file, path, problem.text, problem.hint, *mark)
            errors.append(problem)
        return errors

    def line(self, node: ValueNode) -> str:
        """Return ``file:line`` of the origin of a value."""
        mark = self._marks(node.origin.file).find(node.origin.path, of_key=False)
        return f"{node.origin.file}:{mark[0]}" if mark else str(node.origin.file)

    def _check_link(self, path: Path, shown: Path) -> None:
        """Refuse a link out of the project. Raises: ManifestError."""
        try:
            if path.is_symlink():
                is_inside = self._is_inside(path)
            else:  # a thousand manifests may share a folder
                folder = path.parent
                if folder not in self._inside:
                    self._inside[folder] = self._is_inside(folder)
                is_inside = self._inside[folder]
        except (OSError, RuntimeError):  # RuntimeError: a loop of links, before Python 3.13
            return  # reading it will fail
        if not is_inside:
            problem = "the file is a link that leaves the project"
            raise ManifestError(shown, (), problem, "replace it by a copy")

    def _is_inside(self, path: Path) -> bool:
        real = path.resolve()
        folders = {folder.resolve() for folder in (self.root, self.configs, self.links_into)}
        return any(real.is_relative_to(folder) for folder in folders)

    def _marks(self, shown: Path) -> Positions:
        if shown not in self._positions:
            content = self._contents.get(shown)
            self._positions[shown] = read_positions(shown, content) if content else Positions()
        return self._positions[shown]


def _content(path: Path, shown: Path) -> bytes:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(min(size, MAX_BYTES) + 1)
    except (ValueError, IsADirectoryError):
        raise ManifestError(shown, (), "not a regular file", "remove it or rename it") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ManifestError(
            shown, (), f"cannot read the file: {reason}", "check its permissions"
        ) from None
    if len(content) > MAX_BYTES:
        mib = max(size, len(content)) / 2**20
        text = f"the file has {mib:.1f} MiB, but a manifest may have at most {MAX_BYTES >> 20} MiB"
        raise ManifestError(shown, (), text, "split it")
    return content
