"""The files that two builds have made of a model, and which of them are the same byte for byte."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from buildsys.plan.action import Action

EQUAL, DIFFERENT, NOT_EXPECTED, ONE_SIDED = (
    "equal",
    "different",
    "not expected to be equal",
    "in one build only",
)
_PIECE_BYTES = 1 << 20
_TIMES = frozenset({"started", "seconds", "peak_rss_mib", "build_seconds"})


@dataclass(frozen=True)
class Artifact:
    """One file of both builds; ``why`` says why it need not be equal, and is empty where it must be."""

    target: str
    file: str  # relative to the model's folder
    why: str
    sizes: tuple[int | None, int | None]  # bytes; None where a build has not made it
    first_byte: int | None = None  # the first that differs, None when all are equal
    difference: str = ""  # what is stored there
    field: Mapping[str, Any] | None = None  # of a graph: kind, name, field, and both values

    @property
    def state(self) -> str:
        """Return one of the words above."""
        if self.first_byte is None and None not in self.sizes:
            return EQUAL
        if self.why:
            return NOT_EXPECTED
        return ONE_SIDED if None in self.sizes else DIFFERENT

    @property
    def broken(self) -> bool:
        """Return whether it should be equal and is not."""
        return self.state in (DIFFERENT, ONE_SIDED)


def compare_builds(
    first: Path, second: Path, model: str, actions: Sequence[Action]
) -> Iterator[Artifact]:
    """Yield every file of ``model`` that either build folder has, in the order of the plan; logs are none."""
    found = {path for build in (first, second) for path in _files(build, model)}
    for action in actions:
        owned = {ref.path: role for role, ref in action.outputs.items()}
        folder = owned_folder(action)
        mine = [path for path in owned if path in found]
        mine += sorted(
            path for path in found if path.startswith(folder) and not _owner(path, actions)
        )
        for path in mine:
            found.discard(path)
            why = _why_not(action, owned.get(path))
            yield _compare(action, path.removeprefix(f"{model}/"), why, first / path, second / path)


def owned_folder(action: Action) -> str:
    """Return the folder of a target's result, with a slash: what else lies there is the target's as well."""
    return action.outputs["result"].path.rpartition("/")[0] + "/"


def _owner(path: str, actions: Iterable[Action]) -> bool:
    return any(path == ref.path for action in actions for ref in action.outputs.values())


def _files(build: Path, model: str) -> Iterator[str]:
    for path in (build / model).rglob("*"):
        if path.is_file() and path.suffix != ".log":
            yield path.relative_to(build).as_posix()


def _why_not(action: Action, role: str | None) -> str:
    if role is None:
        return "an exporter's own report, with times and paths"
    if role == "result":
        return "a record with times"
    return _why_not_engine(action.options["engine"]) if action.stage == "engine" else ""


def _why_not_engine(engine: Mapping[str, Any]) -> str:
    if engine["backend"] != "onnxruntime":
        return "TensorRT's engines are not reproducible"
    # its layout pass goes through a hash table of addresses: 2 of 8 builds of one graph had another order of nodes
    return (
        "ONNX Runtime's layout pass orders nodes by address"
        if engine["graph_optimization_level"] == "all"
        else ""
    )


def _compare(action: Action, file: str, why: str, first: Path, second: Path) -> Artifact:
    sizes = _size(first), _size(second)
    if None in sizes:
        return Artifact(action.target, file, why, sizes)
    position = first_difference(first, second)
    told = "" if position is None else _told(first, second)
    return Artifact(action.target, file, why, sizes, position, told)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def first_difference(first: Path, second: Path) -> int | None:
    """Return the position of the first byte in which two files differ, None when they are equal."""
    position = 0
    with first.open("rb") as one, second.open("rb") as other:
        while True:
            here, there = one.read(_PIECE_BYTES), other.read(_PIECE_BYTES)
            if here != there:
                return position + _first_index(here, there)
            if not here:
                return None
            position += len(here)


def _first_index(here: bytes, there: bytes) -> int:
    low, high = (
        0,
        min(len(here), len(there)),
    )  # here[:low] is equal; bisected, as a loop over bytes is slow
    while low < high:
        middle = (low + high + 1) // 2
        if here[low:middle] == there[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _told(first: Path, second: Path) -> str:
    """Return what differs in files that the standard library can read; graphs are looked at elsewhere."""
    try:
        if first.suffix == ".json":
            return _json_difference(json.loads(first.read_bytes()), json.loads(second.read_bytes()))
        return _member_difference(first, second) if first.suffix == ".npz" else ""
    except (OSError, ValueError, zipfile.BadZipFile):
        return ""


def _json_difference(first: Any, second: Any) -> str:
    where = next(_changed_keys(first, second, ""), "")
    return f"{where} differs" if where else "only times differ"


def _changed_keys(first: Any, second: Any, where: str) -> Iterator[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys((*first, *second)):
            if name not in _TIMES:
                yield from _changed_keys(
                    first.get(name), second.get(name), f"{where}.{name}" if where else name
                )
    elif first != second:
        yield where


def _member_difference(first: Path, second: Path) -> str:
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        here, there = one.namelist(), other.namelist()
        if here != there:
            return f"its arrays are {', '.join(here)} and {', '.join(there)}"
        changed = [name for name in here if one.getinfo(name).CRC != other.getinfo(name).CRC]
    return f"array {changed[0].removesuffix('.npy')}" if changed else ""
