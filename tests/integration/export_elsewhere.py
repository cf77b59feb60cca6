"""Export and simplify models of a project, and capture a program of torch.export.

It does so in this process or as a program (``ROOT OUT MODEL…``).

The program writes the digest of each file to OUT/digests.json.
"""

import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_jobs import manifest, stage_job
from torchlib_once import parse_torchlib_once

from buildsys.project.load import load_project
from buildsys.stages.export import stage as export
from buildsys.stages.program import stage as program
from buildsys.stages.simplify import stage as simplify

# a second less: no collections while torch is imported
PROGRAM = "import gc; gc.disable(); import export_elsewhere; export_elsewhere.main()"
CAPTURED: dict[str, Any] = {
    "source": {"python": "tests/integration/sample_networks.py:Affine"},
    "engines": [{"backend": "executorch", "name": "e"}],
}


def export_models(root: Path, out: Path, names: list[str]) -> dict[str, str]:
    """Return file -> digest."""
    models = load_project(root).models
    torch.manual_seed(os.getpid())  # must not matter
    program.run(stage_job("program", manifest(**CAPTURED), out))
    for name in names:
        exported, simplified = (
            stage_job(stage, models[name].data, out, root) for stage in ("export", "simplify")
        )
        export.run(exported)
        inputs = {
            role: path
            for role, path in exported.outputs.items()
            if role != "result" and path.exists()
        }
        result = simplify.run(replace(simplified, inputs=inputs))
        assert result.status == "passed", result.reason
    files = sorted([*out.rglob("model.onnx*"), *out.rglob("program.pt2")])
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def main() -> None:
    """Export as a program."""
    parse_torchlib_once(pytest.MonkeyPatch())
    found = export_models(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    # not to stdout, where C++ libraries print as well
    Path(sys.argv[2], "digests.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)  # the teardown of torch takes time
