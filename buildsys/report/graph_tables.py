"""The graph of a model from PyTorch to the engines: facts, stages, inputs and outputs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.report_types import Table
from buildsys.report.result_files import AnyResult, first_content, of_type
from buildsys.stages.export.result import ExportResult
from buildsys.stages.reference.result import ReferenceResult
from buildsys.stages.simplify.result import SimplifyResult
from buildsys.stages.surgery.result import SurgeryResult

Manifest = Mapping[str, Any]
_COUNTED = "multiply-accumulates of convolutions, matrix products and recurrent layers"


def opt_sizes(manifest: Manifest) -> dict[str, int]:
    """Read the opt sizes of the dynamic dimensions."""
    dims = (manifest.get("dims") or {}).items()
    return {name: span["opt"] for name, span in dims if "opt" in span}


def graph_facts(results: Sequence[AnyResult]) -> dict[str, str]:
    """Describe exporter, simplifier and weights: title -> text."""
    export, simplify = first_content(results, ExportResult), first_content(results, SimplifyResult)
    exported = ""
    if exporter := export.get("exporter"):
        tool = "an ONNX file" if exporter == "none" else exporter
        exported = f"{tool}, opset {export.get('opset')}, IR version {export.get('ir_version')}"
    weights = export.get("weights") or first_content(results, ReferenceResult).get("weights")
    facts = {
        "exported": exported or "not recorded",
        "simplified": simplify.get("tool"),
        "parameters": q.count(export["parameters"]) if "parameters" in export else "",
        "weights": weights,
    }
    return {title: text for title, text in facts.items() if text}


def graph_tables(
    manifest: Manifest, results: Sequence[AnyResult], graphs: Mapping[str, Mapping[str, Any]]
) -> tuple[Table, ...]:
    """List the graph of every stage, and inputs and outputs.

    ``graphs`` are the facts of the written graphs by target.
    """
    ports = Table(
        "Inputs and outputs",
        ("tensor", "name", "dtype", "shape"),
        tuple(_ports(manifest, results)),
        tuple(
            f"{name}: {span.get('min')} to {span.get('max')}, optimized for {span.get('opt')}"
            for name, span in (manifest.get("dims") or {}).items()
        ),
    )
    return tuple(table for table in (_stages(manifest, graphs), ports) if table.rows)


def _stages(manifest: Manifest, graphs: Mapping[str, Mapping[str, Any]]) -> Table:
    notes, rows = [], []
    if any(facts["macs"]["total"] for facts in graphs.values()):
        sizes = ", ".join(f"{name} = {size}" for name, size in opt_sizes(manifest).items())
        notes.append(f"MACs{f' at {sizes}' if sizes else ''}: {_COUNTED}.")
    for target, facts in graphs.items():
        name, stored = ":".join(target.split(":")[::2]), facts["initializers"]
        if uncounted := facts["macs"]["not_counted"]:
            names = ", ".join(f"{name} {q.TIMES}{nodes}" for name, nodes in uncounted.items())
            notes.append(f"The MACs of {name} are unknown, because {names} cannot be counted.")
        opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
        numbers = q.count(facts["weights"]), q.count(stored["count"]), q.size(stored["bytes"])
        rows.append((name, opsets or q.NOTHING, *numbers, q.large(facts["macs"]["total"])))
    columns = ("graph", "opsets", "weights>", "initializers>", "their size>", "MACs>")
    return Table("Stages of the graph", columns, tuple(rows), tuple(notes))


def _ports(manifest: Manifest, results: Sequence[AnyResult]) -> Iterator[tuple[str, ...]]:
    """Yield the inputs and outputs after the last surgery that changed them."""
    surgery = [result.content for result in of_type(results, SurgeryResult)]
    export = first_content(results, ExportResult)
    ports: Mapping[str, Any] = next((s for s in reversed(surgery) if "inputs" in s), export)
    is_defined_by_hand = "reference" in (manifest.get("source") or {})
    for role in ("input", "output"):
        tensors = ports.get(f"{role}s", [])
        if is_defined_by_hand:
            declared = manifest.get(f"{role}s") or {}
            tensors = [{**tensor, "name": name} for name, tensor in declared.items()]
        for tensor in tensors:
            sizes = ("?" if size is None else str(size) for size in tensor.get("shape") or ())
            shape = f" {q.TIMES} ".join(sizes) or "scalar"
            yield role, str(tensor["name"]), str(tensor.get("dtype") or "?"), shape
