"""Which implementation of each custom operator the graphs' checks and each engine ran with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.manifest.operator_choice import chosen_kind, implementations
from buildsys.report.result_files import mapping
from buildsys.report.results.report import OperatorLine

_CHECKED_BY = "onnxruntime"  # simplify, convert and validate run the graphs there


def operator_lines(manifest: Mapping[str, Any]) -> Iterator[OperatorLine]:
    """Yield one line per operator and place where it is implemented."""
    for entry in map(mapping, manifest.get("ops") or ()):
        yield OperatorLine(
            str(entry["op"]), "checks of the graph", _implementation(entry, _CHECKED_BY)
        )
        for engine in map(mapping, manifest.get("engines") or ()):
            text = _implementation(entry, str(engine["backend"]))
            yield OperatorLine(str(entry["op"]), f"engine {engine['name']}", text)


def _implementation(entry: Mapping[str, Any], backend: str) -> str:
    kind = chosen_kind(entry, backend)
    if kind is None:
        return ""
    given = implementations(entry, backend)[kind]
    return f"{kind} {given if isinstance(given, str) else _files(given)}"


def _files(given: Mapping[str, Any]) -> str:
    if "sources" in given:
        return ", ".join(given["sources"])
    return str(next((given[name] for name in ("file", "python", "library") if name in given), ""))
