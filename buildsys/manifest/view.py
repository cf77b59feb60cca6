"""Access to a merged manifest for the checks across fields.

Checks run even if the schema has refused some values, so that one run reports everything. A refused
value is replaced by REFUSED, so all other values have the types of the schema and no check computes
with a value already reported.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import EllipsisType
from typing import Any, Final

from buildsys.errors import ManifestError
from buildsys.manifest.problem import Problems, suggest
from buildsys.manifest.shape_cases import WHENS, exported_interface, interface_after, steps_of
from buildsys.manifest.value_tree import FieldPath, ValueNode, error_at, nearest, plain

Step = str | int | EllipsisType
Matches = list[tuple[FieldPath, Any]]
Maps = list[tuple[FieldPath, dict[str, Any]]]
REFUSED: Final = object()


class ManifestView:
    """Merged data of one model, with the tree for locating problems.

    ``file`` is the model's own manifest; ``refused`` are the fields already reported.
    """

    def __init__(
        self,
        tree: ValueNode,
        file: Path,
        refused: Iterable[FieldPath] = (),
        data: dict[str, Any] | None = None,
    ) -> None:
        """Prepare; ``data`` is the tree as plain data, and may be changed."""
        self._tree = tree
        self._file = file
        self.data: dict[str, Any] = plain(tree) if data is None else data
        refused = list(refused)
        self._is_refused = bool(refused)  # a part of it
        for path in refused:
            parent, last = self.get(*path[:-1]), path[-1]
            if isinstance(parent, dict):
                parent[str(last)] = REFUSED
            elif isinstance(parent, list):
                parent[int(last)] = REFUSED

    def get(self, *path: str | int) -> Any:
        """Return the value at ``path``: None if not set, or REFUSED."""
        value: Any = self.data
        for step in path:
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and isinstance(step, int) and step < len(value):
                value = value[step]
            else:
                return REFUSED if value is REFUSED else None
        return value

    def map(self, *path: str | int) -> dict[str, Any]:
        """Return the map at ``path``; empty if there is none."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def list(self, *path: str | int) -> list[Any]:
        """Return the list at ``path``; empty if there is none."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    @property
    def is_defined(self) -> bool:
        """True if the network is defined by hand, with TensorRT's API."""
        return "tensorrt" in self.map("source")

    @property
    def network_path(self) -> FieldPath:
        """The place of the source that gives the golden outputs."""
        return ("source", "reference") if self.is_defined else ("source",)

    def find(self, *pattern: Step) -> Matches:
        """Find path and value of each match; ``...`` matches every member."""
        if pattern[0] is not ... and pattern[0] not in self.data:
            return []  # most sections of most manifests
        matches: Matches = [((), self.data)]
        for step in pattern:
            parents, matches = matches, []
            for path, value in parents:
                if isinstance(value, dict):
                    if step is ...:
                        matches += [((*path, name), member) for name, member in value.items()]
                    elif step in value:
                        matches.append(((*path, step), value[step]))
                elif isinstance(value, list):
                    chosen = (n for n in range(len(value)) if step is ... or step == n)
                    matches += [((*path, index), value[index]) for index in chosen]
        return matches

    def maps(self, *pattern: Step) -> Maps:
        """Find path and value of each matching map."""
        return [match for match in self.find(*pattern) if isinstance(match[1], dict)]

    def is_known(self, *path: str | int) -> bool:
        """Check whether no part of ``path`` is refused."""
        return not self._is_refused or not contains_refused(self.get(*path))

    def is_own(self, *path: str | int) -> bool:
        """Check whether the model's own manifest set the value."""
        node, missing = nearest(self._tree, path)
        return not missing and node.origin.file == self._file

    def dim_range(self, name: str) -> tuple[int, int, int] | None:
        """Return min, max and step of a dimension, None if unknown."""
        span = self.map("dims", name)
        low, high, step = span.get("min"), span.get("max"), span.get("multiple_of", 1)
        if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
            return low, high, step
        return None

    def undeclared(self, size: object) -> tuple[str, str] | None:
        """Check for a size missing from ``dims``."""
        declared = self.map("dims")
        if not isinstance(size, str) or size in declared or self.get("dims") is REFUSED:
            return None
        close = suggest(size, declared, what="declared")
        add = f"add dims: {{{size}: {{min: …, opt: …, max: …}}}}"
        return f'dimension "{size}" is not declared in dims', close or add

    def duplicates(self, section: str, field: str) -> Problems:
        """Yield the entries listed twice in a list such as ``cases``."""
        entries = self.list(section, field)
        for index, entry in enumerate(entries):
            if isinstance(entry, str) and entry in entries[:index]:
                text = f'{field.removesuffix("s")} "{entry}" is listed twice'
                yield self.problem((section, field, index), text, "remove one of them")

    def problem(
        self, path: FieldPath, text: str, hint: str = "", *, of_key: bool = False
    ) -> ManifestError:
        """Return an error at ``path``."""
        return error_at(self._tree, path, text, hint, of_key=of_key)


def contains_refused(value: Any) -> bool:
    """Check whether a value or a part of it is REFUSED."""
    if isinstance(value, (dict, list)):
        return any(map(contains_refused, value.values() if isinstance(value, dict) else value))
    return value is REFUSED


def shapes_after_surgery(view: ManifestView) -> dict[str, list[Any]] | None:
    """Compute the shapes of engine inputs; None if a part is refused."""
    if not all(view.is_known(section) for section in ("inputs", "outputs", "surgery")):
        return None
    interface = exported_interface(view.data)
    for when in WHENS:
        interface = interface_after(interface, steps_of(view.data, when))
    return {name: tensor["shape"] for name, tensor in interface.inputs.items()}
