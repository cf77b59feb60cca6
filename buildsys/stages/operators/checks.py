"""Checks of the section ``ops``."""

from buildsys.manifest.backend_choices import implementations
from buildsys.manifest.problem import Problems
from buildsys.manifest.view import ManifestView
from buildsys.system.backend_registry import backend_names

# ai.onnx.contrib and other extensions are third-party domains
_ONNX_DOMAINS = ("onnx", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview")


def problems(view: ManifestView) -> Problems:
    """Yield duplicate, misplaced and unimplemented operators."""
    places: dict[str, int | str] = {}
    for path, entry in view.maps("ops", ...):
        op = entry["op"]
        if op in places:
            text = f"operator {op} is already declared in ops.{places[op]}"
            hint = "put all implementations into one entry"
            yield view.problem((*path, "op"), text, hint)
        elif op.partition("::")[0] in _ONNX_DOMAINS:
            text = f"{op} is in a domain of ONNX, which cannot be extended"
            hint = "choose a domain of your own, such as custom_domain::"
            yield view.problem((*path, "op"), text, hint)
        places.setdefault(op, path[-1])
        implemented = {backend: [*implementations(entry, backend)] for backend in backend_names()}
        if not any(implemented.values()):
            hint = "add function, library (ONNX Runtime) or plugin (TensorRT)"
            yield view.problem(path, f"operator {op} has no implementation", hint)
            continue
        for backend, kind in entry.get("use", {}).items():
            if kind not in (None, *implemented[backend]):
                text = f"{backend} has no implementation of the kind {kind}"
                yield view.problem((*path, "use", backend), text, f"add it as {kind}: …")
