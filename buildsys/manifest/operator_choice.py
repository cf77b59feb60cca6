"""Custom operators of a manifest: which implementation a backend takes, and what can be wrong with the section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from buildsys.manifest.problem import Problem, show_value

if TYPE_CHECKING:
    from buildsys.manifest.checks.model import View

BACKEND_KINDS = {
    "onnxruntime": ("function", "library"),
    "tensorrt": ("function", "plugin"),
    "tensorrt_rtx": ("function", "plugin"),
}
# of ONNX itself; ai.onnx.contrib and other extensions are somebody's own
_ONNX_DOMAINS = (
    "onnx",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.training",
    "ai.onnx.preview",
    "ai.onnx.preview.training",
)


def implementations(entry: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Return what an entry of ``ops`` gives a backend, by kind and in the order of the default."""
    function, other = BACKEND_KINDS[backend]
    named = entry.get("function")
    given = {
        function: named.get(backend) if isinstance(named, Mapping) else named,
        other: entry.get(other),
    }
    return {kind: value for kind, value in given.items() if value is not None}


def chosen_kind(entry: Mapping[str, Any], backend: str) -> str | None:
    """Return the kind of implementation that a backend takes: as ``use`` says, else the first that there is."""
    asked = (entry.get("use") or {}).get(backend)
    return asked or next(iter(implementations(entry, backend)), None)


def operator_problems(view: View) -> Iterator[Problem]:
    """Yield what is wrong between the fields of ``ops``."""
    seen: dict[str, int] = {}
    for index, entry in enumerate(view.list("ops")):
        if not isinstance(entry, dict):
            continue
        op = entry.get("op")
        if isinstance(op, str):
            if op in seen:
                text = f"the operator {op} is declared already, as ops.{seen[op]}"
                yield view.problem(
                    ("ops", index, "op"), text, "put all its implementations into one entry"
                )
            elif op.partition("::")[0] in _ONNX_DOMAINS:
                text = f"{op} is in a domain of ONNX itself, where nothing can be added"
                yield view.problem(
                    ("ops", index, "op"),
                    text,
                    "choose a domain of your own such as custom_domain::",
                )
            seen.setdefault(op, index)
        yield from _use_problems(view, index, entry)


def _use_problems(view: View, index: int, entry: dict[str, Any]) -> Iterator[Problem]:
    given = {backend: implementations(entry, backend) for backend in BACKEND_KINDS}
    if not any(given.values()) and isinstance(entry.get("op"), str):
        text = f"nothing implements {entry['op']}"
        yield view.problem(
            ("ops", index), text, "add function, library (ONNX Runtime) or plugin (TensorRT)"
        )
        return
    use = entry.get("use")
    for backend, kind in use.items() if isinstance(use, dict) else ():
        if kind in BACKEND_KINDS.get(backend, ()) and kind not in given[backend]:
            text = f"{show_value(kind)} is not given for {backend}"
            hint = f"given: {', '.join(given[backend])}" if given[backend] else f"add {kind}: …"
            yield view.problem(("ops", index, "use", backend), text, hint)
