from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quantize_jobs import Chain, overflowing_net

from buildsys.stages.search import stage as localize
from buildsys.workers.job import Job


def search(chain: Chain, precision: str, limit_s: float = 600.0) -> dict[str, Any]:
    """Return the figures of a search with the inputs of ``convert``."""
    action = chain.action(f"convert:m:{precision}")
    paths = {role: chain.build / ref.path for role, ref in action.inputs.items()}
    folder = chain.build / "localize"
    folder.mkdir(exist_ok=True)
    job = Job(
        target="localize:m:e",
        stage="localize",
        model="m",
        variant=precision,
        options={**action.options, "limit_s": limit_s},
        inputs={role: path for role, path in paths.items() if path.exists()},
        outputs={"result": folder / "localize.json"},
        project=chain.project,
    )
    result = localize.run(job)
    json.dumps(result.figures, allow_nan=False)
    assert list(folder.iterdir()) == []  # nothing is left behind
    return dict(result.figures)


def test_the_nodes_around_an_overflow_stay_in_fp32(tmp_path: Path) -> None:
    found = search(Chain(tmp_path, overflowing_net(), precision="fp16"), "fp16")
    assert (found["without"]["passed"], found["with"]["passed"]) == (False, True)
    assert found["nodes"] == [["Mul_b", "Mul"], ["Div_d", "Div"]]
    assert found["is_smallest"] is True


def test_without_time_there_is_no_list_or_one_that_passes(tmp_path: Path) -> None:
    found = search(Chain(tmp_path, overflowing_net(), precision="fp16"), "fp16", limit_s=0.0)
    assert found["is_smallest"] is False
    assert found["nodes"] is None or found["with"]["passed"]
