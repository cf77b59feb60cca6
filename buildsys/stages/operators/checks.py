"""Checks of the section ``ops``."""

from __future__ import annotations

from buildsys.manifest.backend_choices import implementations
from buildsys.manifest.problem import Problems
from buildsys.manifest.value_tree import FieldPath
from buildsys.manifest.view import ManifestView
from buildsys.system.backend_registry import backend_names, describe_backend

# ai.onnx.contrib and other extensions are third-party domains
_ONNX_DOMAINS = ("onnx", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview")


def problems(view: ManifestView) -> Problems:
    """Yield duplicate, misplaced and unimplemented operators."""
    first: dict[str, FieldPath] = {}
    for path, entry in view.maps("ops", ...):
        op = entry.get("op")
        if not isinstance(op, str):
            continue
        if op in first:
            text = f"operator {op} is already declared in ops.{first[op][-1]}"
            hint = "put all implementations into one entry"
            yield view.problem((*path, "op"), text, hint)
        elif op.partition("::")[0] in _ONNX_DOMAINS:
            text = f"{op} is in a domain of ONNX, which cannot be extended"
            hint = "choose a domain of your own, such as custom_domain::"
            yield view.problem((*path, "op"), text, hint)
        first.setdefault(op, path)
        names = backend_names()
        implemented = {backend: [*implementations(entry, backend)] for backend in names}
        kinds = {backend: describe_backend(backend).operator_kinds for backend in names}
        if not any(implemented.values()):
            hint = "add function, library (ONNX Runtime) or plugin (TensorRT)"
            yield view.problem(path, f"operator {op} has no implementation", hint)
            continue
        for backend, kind in view.map(*path, "use").items():
            if kind in kinds.get(backend, ()) and kind not in implemented[backend]:
                text = f"{backend} has no implementation of the kind {kind}"
                yield view.problem((*path, "use", backend), text, f"add {kind}: …")
