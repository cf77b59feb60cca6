"""From a model's results and its manifest to the report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.report.checks import checks_of, contradictions
from buildsys.report.custom_operators import operator_lines
from buildsys.report.engine_provenance import engine_provenance
from buildsys.report.engines import bench_notes, engine_lines, timings
from buildsys.report.gpu_timing import gpu_states, gpu_timings
from buildsys.report.graphs import conversion_of, graph_of, surgery_of
from buildsys.report.result_files import ABSENT, Result, mapping, read_results, texts, whole
from buildsys.report.results.report import FileLine, Provenance, Report, TensorLine
from buildsys.report.verdict import target_line, verdict_of

Manifest = Mapping[str, Any]
_WARNINGS = ("warnings", "messages", "noisy")


def assemble(
    model: str,
    manifest: Manifest,
    inputs: Mapping[str, Path],
    graphs: Mapping[str, Mapping[str, Any]],
) -> Report:
    """Return the report on ``model`` from its resolved manifest and its result files (target -> path).

    ``graphs`` has the figures of the graph that a target has written (``inspection.figures``), in their order.
    """
    return assemble_results(model, manifest, read_results(inputs), graphs)


def assemble_results(
    model: str,
    manifest: Manifest,
    results: Sequence[Result],
    graphs: Mapping[str, Mapping[str, Any]],
) -> Report:
    """Return the report on results that have been read."""
    export, reference, simplify = (
        _first(results, stage, model) for stage in ("export", "reference", "simplify")
    )
    converted = [result for result in results if result.stage == "convert"]
    changed = [result for result in results if result.stage == "surgery"]
    checks = checks_of(results)
    odd = tuple(contradictions(checks))
    compared = {check.target: check.comparisons for check in checks}
    return Report(
        model=model,
        description=str(manifest.get("description") or ""),
        source=_source(manifest),
        weights=str(
            export.figures.get("weights") or reference.figures.get("weights") or _weights(manifest)
        ),
        verdict=verdict_of(results, odd),
        summary=tuple(target_line(result, compared.get(result.target, ())) for result in results),
        tensors=tuple(
            _tensors(
                next((result for result in reversed(changed) if "inputs" in result.figures), export)
            )
        ),
        dims={name: _range(mapping(span)) for name, span in mapping(manifest.get("dims")).items()},
        graph=graph_of(export, simplify, graphs, opt_sizes(manifest), changed=bool(changed)),
        surgery=tuple(step for result in changed for step in surgery_of(result)),
        custom_operators=tuple(operator_lines(manifest)),
        conversions=tuple(conversion_of(result) for result in converted),
        checks=checks,
        engines=engine_lines(results, manifest),
        engine_provenance=engine_provenance(results, manifest),
        bench=timings(results),
        gpu_timings=gpu_timings(results),
        gpu_states=gpu_states(results),
        bench_notes=bench_notes(results),
        warnings=(*odd, *_warnings(results)),
        provenance=_provenance(manifest, results),
    )


def _first(results: Sequence[Result], stage: str, model: str) -> Result:
    found = (result for result in results if result.stage == stage)
    return next(found, Result(f"{stage}:{model}", stage, "", ABSENT))


def _source(manifest: Manifest) -> str:
    source = mapping(manifest.get("source"))
    kinds = (kind for kind in ("torchvision", "python", "onnx") if kind in source)
    return " ".join(f"{kind} {source[kind]}" for kind in kinds)


def _weights(manifest: Manifest) -> str:
    source = mapping(manifest.get("source"))
    weights = source.get("weights")
    if isinstance(weights, Mapping):
        return f"from {weights.get('file')}"
    if weights or "onnx" in source:
        return str(weights or "as in the file")
    return f"not loaded; seed {source.get('seed', 0)}"


def opt_sizes(manifest: Manifest) -> dict[str, int]:
    """Return the sizes of dynamic dimensions that engines are built for."""
    dims = mapping(manifest.get("dims")).items()
    return {
        name: size for name, span in dims if (size := whole(mapping(span).get("opt"))) is not None
    }


def _range(span: Mapping[str, Any]) -> str:
    text = f"{span.get('min')} to {span.get('max')}, built for {span.get('opt')}"
    return text if span.get("multiple_of", 1) == 1 else f"{text}, in steps of {span['multiple_of']}"


def _tensors(export: Result) -> Iterator[TensorLine]:
    for role in ("input", "output"):
        declared = export.figures.get(f"{role}s")
        for tensor in map(mapping, declared if isinstance(declared, list) else []):
            shape = tensor.get("shape") or ()
            yield TensorLine(
                role,
                str(tensor.get("name")),
                str(tensor.get("dtype")),
                tuple("?" if d is None else str(d) for d in shape),
            )


def _warnings(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        for message in (text for key in _WARNINGS for text in texts(result.figures.get(key))):
            yield f"{result.target}: {message}"


def _provenance(manifest: Manifest, results: Sequence[Result]) -> Provenance:
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return Provenance(
        manifest=manifest,
        manifest_sha256=hashlib.sha256(canonical.encode()).hexdigest(),
        versions=_versions(results),
        devices=tuple(sorted({device for result in results for device in _device(result)})),
        files=tuple(_files(results)),
        started=min((result.started for result in results if result.started), default=""),
    )


def _versions(results: Sequence[Result]) -> dict[str, str]:
    """Return library -> version; where stages saw different ones, every one of them is named.

    Those of a toolchain carry its name.
    """
    seen: dict[str, dict[str, None]] = {}
    for result in results:
        toolchain = result.toolchain.get("name")
        for name, version in result.toolchain.items():
            if name != "name":
                seen.setdefault(f"{name} ({toolchain})" if toolchain else name, {})[version] = None
    return {name: " and ".join(versions) for name, versions in sorted(seen.items())}


def _device(result: Result) -> Iterator[str]:
    if cpu := result.figures.get("cpu"):
        yield f"CPU: {cpu}"


def _files(results: Sequence[Result]) -> Iterator[FileLine]:
    for result in results:
        folder = result.file.rpartition("/")[0]
        if result.stage == "export" and result.figures.get("sha256"):
            yield FileLine(
                f"{folder}/model.onnx",
                str(result.figures["sha256"]),
                whole(result.figures.get("bytes")),
            )
        if result.stage == "engine" and result.figures.get("engine_sha256"):
            suffix = "onnx" if result.figures.get("backend") == "onnxruntime" else "engine"
            size = whole(result.figures.get("engine_bytes"))
            yield FileLine(f"{folder}/engine.{suffix}", str(result.figures["engine_sha256"]), size)
