"""Access to a merged manifest for the checks across fields.

Checks run even if the schema has refused some values, so that one run reports as much as possible.
A check ends where it needs a refused value, so no check computes with a value already reported.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any, Final

from buildsys.errors import ManifestError
from buildsys.manifest.shape_cases import WHENS, exported_interface, interface_after, steps_of
from buildsys.manifest.value_tree import FieldPath, ValueNode, error_at, nearest
from buildsys.manifest.workspace import Workspace

Step = str | int | EllipsisType
Matches = list[tuple[FieldPath, Any]]
Maps = list[tuple[FieldPath, dict[str, Any]]]
_REFUSED: Final = object()


class RefusedError(Exception):
    """A check needs a value that has already been reported."""


class ManifestView:
    """Merged data of one model, with the tree for locating problems.

    ``data`` is the tree as plain data, which may be changed, ``file`` the model's own manifest;
    ``refused`` are the fields already reported. All other fields have the types of the schema.
    """

    def __init__(
        self,
        tree: ValueNode,
        data: dict[str, Any],
        file: Path,
        workspace: Workspace,
        refused: Sequence[FieldPath] = (),
    ) -> None:
        self.workspace = workspace
        self._tree = tree
        self._file = file
        self._is_refused = False  # a part of it
        self.data = data
        for *parents, last in refused:
            parent = self.get(*parents)
            if isinstance(parent, dict):
                parent[str(last)] = _REFUSED
            elif isinstance(parent, list):
                parent[int(last)] = _REFUSED
        self._is_refused = bool(refused)

    def get(self, *path: str | int) -> Any:
        """Return the value at ``path``, or None. Raises: RefusedError: a part of it is refused."""
        value: Any = self.data
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            elif value is not _REFUSED:
                return None
        if self._is_refused and _contains_refused(value):
            raise RefusedError
        return value

    def map(self, *path: str | int) -> dict[str, Any]:
        """Return the map at ``path``; empty if there is none. Raises: RefusedError."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def list(self, *path: str | int) -> list[Any]:
        """Return the list at ``path``; empty if there is none. Raises: RefusedError."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    @property
    def is_defined(self) -> bool:
        """True if the network is defined by hand, with TensorRT's API."""
        return "tensorrt" in self.map("source")

    def find(self, *pattern: Step) -> Matches:
        """Find path and value of each match without a refused part; ``...`` matches all members."""
        if pattern[0] is not ... and pattern[0] not in self.data:
            return []  # most sections of most manifests
        matches: Matches = [((), self.data)]
        for step in pattern:
            matches = [
                ((*path, key), member)
                for path, value in matches
                for key, member in _members(value)
                if step is ... or step == key
            ]
        return [match for match in matches if not _contains_refused(match[1])]

    def maps(self, *pattern: Step) -> Maps:
        """Find path and value of each matching map."""
        return [match for match in self.find(*pattern) if isinstance(match[1], dict)]

    def is_own(self, *path: str | int) -> bool:
        """Check whether the model's own manifest set the value."""
        node, missing = nearest(self._tree, path)
        return not missing and node.origin.file == self._file

    def place_of(self, engine: FieldPath, field: str) -> FieldPath:
        """Find the part of the model's own manifest that sets a field of an engine, or lists it."""
        places = (*engine, field), (*engine, "name"), ("model",)
        return next((place for place in places if self.is_own(*place)), places[0])

    def sets(self, section: str) -> bool:
        """Check whether the model's own manifest fills a section."""
        return self.get(section) not in (None, {}, []) and self.is_own(section)

    def dim_range(self, name: str) -> tuple[int, int, int] | None:
        """Return min, max and step of a dimension, None if it is not declared."""
        span = self.map("dims", name)
        return (span["min"], span["max"], span.get("multiple_of", 1)) if span else None

    def problem(
        self, path: FieldPath, text: str, hint: str = "", *, of_key: bool = False
    ) -> ManifestError:
        """Return an error at ``path``."""
        return error_at(self._tree, path, text, hint, of_key=of_key)


def _members(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _contains_refused(value: Any) -> bool:
    return value is _REFUSED or any(_contains_refused(member) for _, member in _members(value))


def shapes_after_surgery(view: ManifestView) -> dict[str, list[Any]]:
    """Compute the shapes of engine inputs. Raises: RefusedError."""
    parts = {section: view.get(section) for section in ("inputs", "outputs", "surgery")}
    interface = exported_interface(parts)
    for when in WHENS:
        interface = interface_after(interface, steps_of(parts, when))
    return {name: tensor["shape"] for name, tensor in interface.inputs.items()}
