"""What each engine was built with, as lines of the report: from its engine.json alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from buildsys.report import formatting
from buildsys.report.result_files import Result, mapping, number, texts
from buildsys.report.results.report import EngineProvenance

_LIBRARIES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_SHOWN_DIGITS = 16
# what the other lines of a report tell already, or only names or judges the engine
_TOLD = ("name", "backend", "precision", "required", "tolerance", "profiles", "toolchain")
# those of TensorRT are taken from the manifest's schema; this one spares most reports the import of pydantic
ONNXRUNTIME_DEFAULTS: Mapping[str, Any] = {
    "provider": "cpu", "intra_op_threads": 0, "inter_op_threads": 1, "graph_optimization_level": "all",
    "execution_mode": "sequential", "spinning": True, "session_config": {},
}  # fmt: skip


def engine_provenance(
    results: Iterable[Result], manifest: Mapping[str, Any]
) -> tuple[EngineProvenance, ...]:
    """Return the provenance of every engine that was built."""
    asked = {engine["name"]: engine for engine in manifest.get("engines", ())}
    return tuple(
        EngineProvenance(
            result.variant, dict(_lines(result.figures, asked.get(result.variant, {})))
        )
        for result in results
        if result.stage == "engine" and result.figures.get("engine_sha256")
    )


def _lines(figures: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    shares = mapping(figures.get("precision_shares"))
    found = {
        "built with": _built_with(mapping(figures.get("built_with"))),
        "settings that are not the defaults": _settings(asked),
        "precision of the layers": _shares(mapping(shares.get("layers"))),
        "precision of the time": _shares(mapping(shares.get("time"))),
        "plugins and operator libraries": ", ".join(_plugins(figures)),
        "optimization profiles": "; ".join(_profiles(figures.get("profiles"))),
        "device memory": _size(figures.get("device_memory_bytes")),
        "build": _phases(mapping(figures.get("phases"))),
        "timing cache": _timing_cache(mapping(figures.get("timing_cache"))),
    }
    yield from ((name, text) for name, text in found.items() if text)


def _built_with(facts: Mapping[str, Any]) -> str:
    library = [f"{title} {facts[name]}" for name, title in _LIBRARIES.items() if facts.get(name)]
    capability = (
        f" (compute capability {facts['compute_capability']})"
        if facts.get("compute_capability")
        else ""
    )
    device = [f"{facts['gpu']}{capability}"] if facts.get("gpu") else texts(facts.get("cpu"))
    driver = [
        f"{name} {facts[key]}"
        for key, name in (("driver", "driver"), ("cuda", "CUDA"))
        if facts.get(key)
    ]
    return ", ".join([*library, *device, *driver, *texts(facts.get("platform"))])


def _settings(asked: Mapping[str, Any]) -> str:
    if not asked:
        return ""
    defaults = _defaults(str(asked.get("backend")))
    changed = {
        name: value
        for name, value in asked.items()
        if name not in _TOLD and value != defaults.get(name, "")
    }
    return ", ".join(f"{name} {_plain(value)}" for name, value in changed.items())


@cache
def _defaults(backend: str) -> Mapping[str, Any]:
    if backend == "onnxruntime":
        return ONNXRUNTIME_DEFAULTS
    from buildsys.manifest.schema import tensorrt as specs

    spec = specs.TensorRtRtxEngine if backend == "tensorrt_rtx" else specs.TensorRtEngine
    fields = spec.model_fields.items()
    found = {
        name: field.get_default(call_default_factory=True)
        for name, field in fields
        if not field.is_required()
    }
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in found.items()
    }


def _shares(shares: Mapping[str, Any]) -> str:
    ordered = sorted(((number(share) or 0.0, name) for name, share in shares.items()), reverse=True)
    return ", ".join(f"{100 * share:.1f} % {name}" for share, name in ordered)


def _plugins(figures: Mapping[str, Any]) -> Iterator[str]:
    loaded = figures.get("plugins")
    plugins = [mapping(entry) for entry in loaded] if isinstance(loaded, list) else []
    yield from (_plugin(plugin) for plugin in plugins)
    told = {plugin.get("operator") for plugin in plugins}
    used = mapping(figures.get("operators")).items()
    yield from (f"{operator} by {how}" for operator, how in used if operator not in told)


def _plugin(plugin: Mapping[str, Any]) -> str:
    digest = (
        f", sha256 {str(plugin['file_sha256'])[:_SHOWN_DIGITS]}…"
        if plugin.get("file_sha256")
        else ""
    )
    named = f"{plugin.get('operator')} by plugin {plugin.get('name')} {plugin.get('version')}"
    return f"{named} ({plugin.get('file')}{digest})"


def _profiles(profiles: object) -> Iterator[str]:
    for index, profile in enumerate(profiles if isinstance(profiles, list) else ()):
        spans = (f"{name} {_span(mapping(span))}" for name, span in mapping(profile).items())
        yield f"{index}: {', '.join(spans)}"


def _span(span: Mapping[str, Any]) -> str:
    low, usual, high = (_plain(span.get(point) or []) for point in ("min", "opt", "max"))
    return low if low == high else f"{low} to {high}, built for {usual}"


def _size(value: object) -> str:
    found = number(value)
    return formatting.size(found) if found is not None else ""


def _phases(phases: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {formatting.duration(number(s))}" for name, s in phases.items()
    )


def _timing_cache(facts: Mapping[str, Any]) -> str:
    digest = str(facts.get("digest") or "")
    if not digest:
        return ""
    began = (
        "pinned"
        if facts.get("pinned")
        else "began with shared timings"
        if facts.get("lent")
        else "began empty"
    )
    missed = f", {facts['misses']} misses" if facts.get("misses") else ""
    return f"{digest[:_SHOWN_DIGITS]}…, {began}, {_size(facts.get('added_bytes'))} added{missed}"


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_plain(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
