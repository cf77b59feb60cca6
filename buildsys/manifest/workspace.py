"""The files of one load, stamped before they are read once."""

import os
from collections.abc import Sequence
from pathlib import Path

from buildsys.errors import ManifestError
from buildsys.manifest.problem import show_value
from buildsys.manifest.value_tree import ValueNode
from buildsys.manifest.yaml_reader import MAX_BYTES, read_nodes
from buildsys.system.files import Stamp, read_limited, stamp


class Workspace:
    """The project's folder as one load sees it.

    Every path accessed is recorded: a cached result is valid while its paths have the same stamps.
    ``links_into`` is a further folder that links of manifests may lead to, ``code`` names folders
    to import user code from.
    """

    def __init__(
        self,
        root: Path,
        configs: Path,
        links_into: Path | None = None,
        code: Sequence[str] = (),
    ) -> None:
        self.root = root
        self.configs = configs
        self.code = code
        self.accessed: dict[str, Stamp | None] = {}  # since it was last replaced
        self._folders = {os.path.realpath(folder) for folder in (root, configs, links_into or root)}
        self._stamps: dict[str, Stamp | None] = {}
        self._documents: dict[Path, ValueNode | ManifestError] = {}

    def relative(self, path: Path) -> Path:
        """Return a path relative to the project, if inside."""
        # as text: relative_to() is slow, and there may be thousands
        return Path(str(path).removeprefix(f"{self.root}{os.sep}"))

    def exists(self, path: Path) -> bool:
        """Record a path and return true if it exists."""
        name = str(self.relative(path))
        if name not in self._stamps:
            self._stamps[name] = stamp(path)
        self.accessed[name] = self._stamps[name]
        return self._stamps[name] is not None

    def locate(self, name: str, base: Path | None = None) -> Path | str:
        """Return the path named by a file of ``base``, else of the project, or a problem.

        It may be anywhere. Keys and stages take ``link/..`` for different folders.
        """
        if not name.strip() or "\0" in name:
            return f"{show_value(name)} is not a path"
        path = (base or self.root) / name
        if ".." in path.parts and os.path.realpath(path) != os.path.realpath(
            os.path.normpath(path)
        ):
            return f"path {show_value(name)} goes up from a link"
        return path

    def document(self, path: Path) -> ValueNode:
        """Read a YAML file. Raises: ManifestError: the file cannot be read or is not valid YAML."""
        self.exists(path)
        if path not in self._documents:
            name = self.relative(path)
            try:
                if not self.is_inside(path):
                    raise ValueError("it is a link that leaves the project")
                self._documents[path] = read_nodes(name, read_limited(path, MAX_BYTES))
            except ManifestError as error:
                self._documents[path] = error
            except (OSError, ValueError) as error:  # its permissions, kind or size
                reason = getattr(error, "strerror", None)
                problem = f"cannot read the file: {reason.lower() if reason else error}"
                hint = "remove it, or replace it by a readable file"
                self._documents[path] = ManifestError(name, (), problem, hint)
        document = self._documents[path]
        if isinstance(document, ManifestError):
            raise document
        return document

    def is_inside(self, path: Path) -> bool:
        """Check for a file of the project, or one that manifests may link to."""
        real = os.path.realpath(path)
        return any(f"{real}{os.sep}".startswith(f"{folder}{os.sep}") for folder in self._folders)
