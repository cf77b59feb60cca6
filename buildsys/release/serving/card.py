"""Descriptions of a release: a model card for people, a CycloneDX bill of materials for programs.

They say what the release knows. Licence, data and intended use are not among it.
Source: huggingface.co/docs/hub/model-cards; CycloneDX 1.6, bom-1.6.schema.json.
"""

import json
import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from buildsys import __version__
from buildsys.release.serving import ServedEngine
from buildsys.report.formatting import align, error, metric, size

_COLUMNS = ("engine", "backend", "precision", "needs", "device", "p50", "error", "size")


def model_card(engines: Sequence[ServedEngine]) -> str:
    """Write the card of a release of one model or several, in Markdown."""
    models = sorted({engine.variant.model for engine in engines})
    release = engines[0].release
    front = {
        "tags": ["buildsys", *sorted({engine.variant.backend for engine in engines})],
        "library_name": "buildsys",
    }
    lines = ["---", *(f"{name}: {json.dumps(value)}" for name, value in front.items()), "---"]
    lines += [f"# {', '.join(models)} {release}", "", "## Engines", ""]
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *map(_row, engines)]
    lines += [f"| {' | '.join(cells)} |" for cells in align(rows, [False] * len(_COLUMNS))]
    if accuracies := [line for engine in engines for line in _accuracy(engine)]:
        lines += ["", "## Accuracy", "", *accuracies]
    for model in models:
        first = next(engine for engine in engines if engine.variant.model == model)
        lines += ["", f"## Inputs and outputs of {model}", ""]
        for kind, ports in first.shapes.items():
            lines += [f"- {kind}: `{p['name']}` {p['dtype']} {p['shape']}" for p in ports]
    error_note = "Errors are the largest relative ones against the original model's outputs."
    lines += ["", f"{error_note} Latencies are medians on the named device.", ""]
    return "\n".join(lines)


def _row(engine: ServedEngine) -> tuple[str, ...]:
    variant = engine.variant
    floors = variant.document.get("floors", {})
    cuda = f", CUDA {floors['cuda']}" if floors.get("cuda") else ""
    measured = variant.measured[0] if variant.measured else None
    timed = (measured.device, f"{measured.p50_ms:.3g} ms") if measured else ("", "")
    facts = variant.backend, variant.precision, f"{floors.get('library', '')}{cuda}", *timed
    return variant.name, *facts, error(variant.error), size(variant.bytes)


def _accuracy(engine: ServedEngine) -> list[str]:
    figures = engine.variant.accuracy
    if not figures:
        return []
    is_share = bool(figures.get("is_share"))
    own, original = (metric(figures[n], is_share=is_share) for n in ("value", "original"))
    of = f"the original model has {original}, on {figures['samples']} samples"
    return [f"- {engine.variant.name}: {figures['title']} {own}; {of}"]


def bill_of_materials(engines: Sequence[ServedEngine]) -> dict[str, Any]:
    """Describe engines and the libraries that run them, in CycloneDX 1.6."""
    libraries: dict[str, dict[str, Any]] = {}
    models, dependencies = [], []
    for engine in engines:
        floors = engine.variant.document.get("floors", {})
        name, _, version = floors.get("library", "").partition(" ")
        reference = f"pkg:pypi/{quote(name)}@{quote(version)}"
        library = {"type": "library", "bom-ref": reference, "name": name, "purl": reference}
        libraries[reference] = {**library, "version": version}
        models.append(_component(engine))
        dependencies.append({"ref": models[-1]["bom-ref"], "dependsOn": [reference]})
    tool = {"type": "application", "name": "buildsys", "version": __version__}
    digests = "".join(sorted(str(engine.variant.files) for engine in engines))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, digests).urn,
        "version": 1,
        "metadata": {"tools": {"components": [tool]}},
        "components": [*models, *libraries.values()],
        "dependencies": dependencies,
    }


def _component(engine: ServedEngine) -> dict[str, Any]:
    variant = engine.variant
    metrics = [{"type": "largest relative error", "value": str(variant.error)}]
    metrics = metrics if variant.error is not None else []
    metrics += [
        {"type": "latency p50 ms", "value": str(one.p50_ms), "slice": one.device}
        for one in variant.measured
    ]
    if variant.accuracy:
        title, value = variant.accuracy["title"], str(variant.accuracy["value"])
        metrics.append({"type": str(title), "value": value})
    ports = {
        kind: [{"format": f"{p['name']}: {p['dtype']} {p['shape']}"} for p in entries]
        for kind, entries in engine.shapes.items()
    }
    return {
        "type": "machine-learning-model",
        "bom-ref": f"{variant.name}@{engine.release}",
        "name": variant.name,
        "version": engine.release,
        "modelCard": {
            "modelParameters": ports,
            "quantitativeAnalysis": {"performanceMetrics": metrics},
        },
        "components": [
            {
                "type": "file", "name": name,
                "bom-ref": f"{variant.name}@{engine.release}/{name}",
                "hashes": [{"alg": "SHA-256", "content": digest}],
            }
            for name, (_, digest) in variant.files.items()
        ],
    }  # fmt: skip
