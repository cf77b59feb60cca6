"""Artifacts of two builds of a model, compared byte by byte."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from buildsys.cli.graph_files import ask_inspection
from buildsys.errors import StageError
from buildsys.plan.action import Action

EQUAL, DIFFERENT, NOT_EXPECTED, ONE_SIDED = (
    "equal",
    "different",
    "not expected to be equal",
    "in one build only",
)
_GRAPHS = (".onnx", ".onnx.data")
_PIECE_BYTES = 1 << 20
_TIMES = frozenset({"started", "seconds", "peak_rss_mib", "build_seconds", "phases"})


@dataclass(frozen=True)
class Artifact:
    """One file of both builds."""

    target: str
    file: str  # relative to the model's folder
    exemption: str  # why it need not be equal; "" if it must be
    sizes: tuple[int | None, int | None]  # bytes; None if a build has not made it
    first_byte: int | None = None  # the first that differs; None if all are equal
    difference: str = ""  # what is stored there
    field: Mapping[str, Any] | None = None  # of a graph: kind, name, field, and both values

    @property
    def state(self) -> str:
        """Return EQUAL, DIFFERENT, NOT_EXPECTED or ONE_SIDED."""
        if self.first_byte is None and None not in self.sizes:
            return EQUAL
        if self.exemption:
            return NOT_EXPECTED
        return ONE_SIDED if None in self.sizes else DIFFERENT

    @property
    def is_broken(self) -> bool:
        """Return True if it should be equal and is not."""
        return self.state in (DIFFERENT, ONE_SIDED)

    def as_json(self) -> dict[str, Any]:
        """Return the artifact under the field names of the JSON output."""
        return {
            "target": self.target,
            "file": self.file,
            "state": self.state,
            "expected": not self.exemption,
            "why": self.exemption,
            "bytes": list(self.sizes),
            "first_byte": self.first_byte,
            "difference": self.difference,
            "field": self.field,
        }


def compare_builds(
    first: Path, second: Path, model: str, actions: Sequence[Action]
) -> list[Artifact]:
    """Return every file of ``model`` in build order, except logs."""
    found = {
        path.relative_to(build).as_posix()
        for build in (first, second)
        for path in (build / model).rglob("*")
        if path.is_file() and path.suffix != ".log"
    }
    declared = {ref.path for action in actions for ref in action.outputs.values()}
    artifacts = []
    for action in actions:
        roles = {ref.path: role for role, ref in action.outputs.items()}
        folder = action.outputs["result"].path.rpartition("/")[0] + "/"
        others = sorted(path for path in found - declared if path.startswith(folder))
        for path in [*(path for path in roles if path in found), *others]:
            found.discard(path)
            file = path.removeprefix(f"{model}/")
            exemption = _exemption(action, roles.get(path))
            artifacts.append(_compare(action.target, file, exemption, first / path, second / path))
    differing = [
        (first / model / one.file, second / model / one.file, one)
        for one in artifacts
        if one.first_byte is not None and one.file.endswith(_GRAPHS)
    ]
    fields = {
        one.file: field
        for (_, _, one), field in zip(differing, _graph_differences(differing), strict=True)
    }
    return [
        replace(one, difference=field["sentence"], field=field)
        if (field := fields.get(one.file))
        else one
        for one in artifacts
    ]


def _exemption(action: Action, role: str | None) -> str:
    """Return the reason for accepting differences in a file, if any."""
    if role is None:
        return "an exporter's own report, with times and paths"
    if role == "result":
        return "a record with times"
    if action.stage != "engine":
        return ""
    engine = action.options["engine"]
    if engine["backend"] != "onnxruntime":
        return "TensorRT engines are not reproducible"
    # its layout pass iterates over a hash table of addresses: 2 of 8 builds of one graph had
    # their nodes in another order
    reordered = engine["graph_optimization_level"] == "all"
    return "ONNX Runtime's layout pass orders nodes by address" if reordered else ""


def _compare(target: str, file: str, exemption: str, first: Path, second: Path) -> Artifact:
    sizes = tuple(path.stat().st_size if path.is_file() else None for path in (first, second))
    artifact = Artifact(target, file, exemption, (sizes[0], sizes[1]))
    if None in sizes:
        return artifact
    position = first_difference(first, second)
    if position is None:
        return artifact
    return replace(artifact, first_byte=position, difference=_describe(first, second))


def first_difference(first: Path, second: Path) -> int | None:
    """Return the position of the first differing byte, None if equal."""
    position = 0
    with first.open("rb") as one, second.open("rb") as other:
        while True:
            here, there = one.read(_PIECE_BYTES), other.read(_PIECE_BYTES)
            if here != there:
                # bisected, as a loop over bytes is slow; here[:low] is equal
                low, high = 0, min(len(here), len(there))
                while low < high:
                    middle = (low + high + 1) // 2
                    if here[low:middle] == there[low:middle]:
                        low = middle
                    else:
                        high = middle - 1
                return position + low
            if not here:
                return None
            position += len(here)


def _graph_differences(
    differing: Sequence[tuple[Path, Path, Artifact]],
) -> Sequence[dict[str, Any] | None]:
    """Return the first differing field of each pair of graphs."""
    requests = [
        {"first": str(first), "second": str(second), "first_byte": one.first_byte}
        for first, second, one in differing
    ]
    if not requests:
        return []
    try:
        answer = ask_inspection("first_differences", {"pairs": requests})
    except StageError:  # the byte positions must do
        return [None] * len(requests)
    found: list[dict[str, Any] | None] = answer["differences"]
    return found


def _describe(first: Path, second: Path) -> str:
    """Return the difference between two JSON or npz files; "" for others."""
    try:
        if first.suffix == ".json":
            here, there = json.loads(first.read_bytes()), json.loads(second.read_bytes())
            key = next(_changed_keys(here, there, ""), "")
            return f"{key} differs" if key else "only times differ"
        return _describe_arrays(first, second) if first.suffix == ".npz" else ""
    except (OSError, ValueError, zipfile.BadZipFile):
        return ""


def _changed_keys(first: Any, second: Any, where: str) -> Iterator[str]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for name in dict.fromkeys((*first, *second)):
            if name not in _TIMES:
                key = f"{where}.{name}" if where else name
                yield from _changed_keys(first.get(name), second.get(name), key)
    elif first != second:
        yield where


def _describe_arrays(first: Path, second: Path) -> str:
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        here, there = one.namelist(), other.namelist()
        if here != there:
            return f"its arrays are {', '.join(here)} and {', '.join(there)}"
        changed = [name for name in here if one.getinfo(name).CRC != other.getinfo(name).CRC]
    return f"array {changed[0].removesuffix('.npy')}" if changed else ""
