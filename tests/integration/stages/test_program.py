"""Programs of torch.export: names, ranges, and what cannot be captured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sample_networks import Nested
from stage_jobs import manifest, stage_job

from buildsys.errors import StageError
from buildsys.stages.program import stage as program
from buildsys.stages.program.capture import PORTS

NETWORKS = "tests/integration/sample_networks.py"
ENGINES = ({"backend": "executorch", "name": "e"},)


def capture(folder: Path, name: str, **sections: Any) -> tuple[Any, dict[str, Any], Any]:
    """Return the loaded program, its ports and the figures of the stage."""
    source = {"python": f"{NETWORKS}:{name}", **sections.pop("source", {})}
    resolved = manifest(source=source, engines=ENGINES, **sections)
    result = program.run(stage_job("program", resolved, folder))
    files = {PORTS: ""}
    loaded = torch.export.load(folder / "m/program/program.pt2", extra_files=files)
    return loaded, json.loads(files[PORTS]), result.figures


def test_a_program_takes_inputs_by_position_and_returns_a_flat_tuple(tmp_path: Path) -> None:
    loaded, ports, figures = capture(tmp_path, "Nested")
    assert [port["name"] for port in ports["inputs"]] == ["x"]
    assert ports["inputs"][0]["shape"] == ["batch", 4]
    assert [port["name"] for port in ports["outputs"]] == ["sum", "heads.0", "heads.1.0"]
    assert ports["outputs"][0]["shape"] == ["batch"]
    assert figures["operators"]["aten.add.Tensor"] == 2
    x = torch.randn(5, 4)
    expected = Nested()(x)
    found = loaded.module()(x)
    assert torch.equal(found[0], expected["sum"])
    assert torch.equal(found[2], expected["heads"][1][0])


def test_the_sizes_of_dims_are_its_range(tmp_path: Path) -> None:
    loaded, _, _ = capture(tmp_path, "Affine")
    (span,) = loaded.range_constraints.values()
    assert (int(span.lower) <= 2, int(span.upper)) == (True, 8)


def test_a_size_fixed_by_the_code_is_named(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"torch.export cannot capture the network|fixes batch to"):
        capture(tmp_path, "FixedBatch")


def test_a_decision_by_values_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(StageError) as caught:
        capture(tmp_path, "ValueBranch")
    assert "torch.export cannot capture the network" in caught.value.problem
    assert "torch.where" in caught.value.hint
