"""Exports of the sample networks."""

from pathlib import Path
from typing import Any

from stage_jobs import ROOT, manifest, stage_job

from buildsys.stages.export import stage as export
from buildsys.workers.job import StageResult

NETWORKS = "tests/integration/sample_networks.py"
IMAGE = {"x": {"shape": ["batch", 3, 8, 8]}}


def export_network(folder: Path, name: str, **sections: Any) -> StageResult:
    """Export a sample network."""
    source = {"python": f"{NETWORKS}:{name}", **sections.pop("source", {})}
    return export.run(stage_job("export", manifest(source=source, **sections), folder))


def dynamo(opset: int = 18, **options: Any) -> dict[str, Any]:
    """Return an export section for the dynamo exporter."""
    return {"exporter": "dynamo", "opset": opset, **options}


def line_of(code: str) -> str:
    """Return file and line of a piece of code in the sample networks."""
    lines = (ROOT / NETWORKS).read_text().splitlines()
    return f"{NETWORKS}:{next(number for number, line in enumerate(lines, 1) if code in line)}"
