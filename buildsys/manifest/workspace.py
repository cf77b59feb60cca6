"""The files of one load: read once, their state noted before they are read, positions looked up on demand."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from buildsys.errors import ManifestError
from buildsys.manifest.problem import Problem
from buildsys.manifest.value_tree import ValueNode, with_origins
from buildsys.manifest.yaml_reader import MAX_BYTES, Positions, read_positions, read_yaml
from buildsys.system.files import Stamp, stamp


class Workspace:
    """The project's folder as one load sees it.

    Every path that is looked at is noted in the states and, within `noting`, in a set of its own: a cached
    result may be used as long as all of its paths are in the same state.
    """

    def __init__(self, root: Path, configs: Path, links_into: Path | None = None) -> None:
        self.root = root
        self.links_into = links_into or root  # files of the project may be links to there
        self.configs = configs
        self.states: dict[str, Stamp | None] = {}
        self.digests: dict[str, tuple[Stamp, str]] = {}  # sha256 of weights; kept from load to load
        self._documents: dict[Path, ValueNode | ManifestError] = {}
        self._contents: dict[Path, bytes] = {}
        self._positions: dict[Path, Positions] = {}
        self._noted: set[str] = set()

    @contextmanager
    def noting(self) -> Iterator[set[str]]:
        """Collect the paths that are looked at within the block."""
        before, self._noted = self._noted, set()
        try:
            yield self._noted
        finally:
            self._noted = before

    def shown(self, path: Path) -> Path:
        """Return a path as errors name it: relative to the project where it lies in it."""
        return path.relative_to(self.root) if path.is_relative_to(self.root) else path

    def state(self, path: Path) -> Stamp | None:
        """Note and return the state of a path, None where nothing is."""
        name = str(self.shown(path))
        self._noted.add(name)
        if name not in self.states:
            self.states[name] = stamp(path)
        return self.states[name]

    def exists(self, path: Path) -> bool:
        """Note a path and return whether something is there."""
        return self.state(path) is not None

    def document(self, path: Path) -> ValueNode:
        """Return the data of a YAML file; the same file is read once.

        Raises: ManifestError: the file cannot be read or is not a manifest's YAML.
        """
        shown = self.shown(path)
        self.state(path)
        if shown not in self._documents:
            try:
                self._contents[shown] = _content(path, shown)
                self._documents[shown] = with_origins(
                    read_yaml(shown, self._contents[shown]), shown
                )
            except ManifestError as error:
                self._documents[shown] = error
        found = self._documents[shown]
        if isinstance(found, ManifestError):
            raise found
        return found

    def sha256(self, path: Path) -> str:
        """Return the digest of a file, read in pieces; known digests are kept while the file's state is the same."""
        state, name = self.state(path), str(self.shown(path))
        known = self.digests.get(name)
        if known and known[0] == state:
            return known[1]
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
        if state is not None:
            self.digests[name] = (state, digest.hexdigest())
        return digest.hexdigest()

    def errors(self, problems: Iterable[Problem | ManifestError]) -> list[ManifestError]:
        """Return problems as errors with line and column; errors pass as they are."""
        return [
            problem if isinstance(problem, ManifestError) else self._error(problem)
            for problem in problems
        ]

    def line(self, node: ValueNode) -> str:
        """Return ``file:line`` of what set a value."""
        mark = self._marks(node.origin.file).find(node.origin.path, of_key=False)
        return f"{node.origin.file}:{mark[0]}" if mark else str(node.origin.file)

    def _error(self, problem: Problem) -> ManifestError:
        file, key = problem.origin
        line, column = self._marks(file).find(key, of_key=problem.of_key) or (None, None)
        return ManifestError(file, key, problem.text, problem.hint, line, column)

    def _marks(self, shown: Path) -> Positions:
        if shown not in self._positions:
            content = self._contents.get(shown)
            self._positions[shown] = (
                read_positions(shown, content) if content is not None else Positions()
            )
        return self._positions[shown]


def _content(path: Path, shown: Path) -> bytes:
    try:
        # a FIFO that nobody writes to would hang
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - one call for the mode
            raise ManifestError(shown, (), "not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(
            shown, (), f"the file cannot be read: {(error.strerror or str(error)).lower()}"
        ) from None
    if len(content) > MAX_BYTES:
        size: Any = path.stat().st_size / 2**20
        raise ManifestError(
            shown, (), f"the file has {size:.1f} MiB, a manifest at most {MAX_BYTES >> 20} MiB"
        )
    return content
