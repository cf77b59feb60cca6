"""Operators that nothing translates or registers, told all at once with their lines."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stage_jobs import manifest, stage_job

from buildsys.backends.captured_program import load_captured
from buildsys.backends.interface import BuildRequest, GraphRefusedError
from buildsys.errors import StageError
from buildsys.stages.common.remedies import explain_refusal
from buildsys.stages.export import stage as export
from buildsys.stages.program import stage as program

NET = """\
import torch
library = torch.library.Library("mine", "DEF")
for name in ("first", "second", "third"):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, torch.clone, "CPU")
    library.impl(name, torch.empty_like, "Meta")
class Net(torch.nn.Module):
    def forward(self, x):
        x = torch.ops.mine.first(x)
        branches = torch.ops.mine.second, torch.ops.mine.third
        return torch.ops.mine.first(torch.cond(x.sum() > 0, *branches, (x,)))
"""
LISTED = "mine::first (loose.py:9), mine::second (loose.py:11), mine::third (loose.py:11)"


def test_all_operators_without_an_implementation_are_named(tmp_path: Path) -> None:
    (tmp_path / "loose.py").write_text(NET)
    engine, options = {"backend": "coreml", "name": "e"}, {"exporter": "dynamo", "opset": 18}
    resolved = manifest(source={"python": "loose.py:Net"}, engines=[engine], export=options)
    job = stage_job("export", resolved, tmp_path, tmp_path)
    with pytest.raises(StageError, match="cannot translate 3 operators to opset 18: ") as error:
        export.run(job)
    assert error.value.problem.endswith(f": {LISTED}")
    sys.modules.pop("loose").library._destroy()

    job = stage_job("program", resolved, tmp_path, tmp_path)
    program.run(job)
    net = sys.modules["loose"]
    receiver = tmp_path / "receiver"  # a project without the network's code
    receiver.mkdir()
    captured = torch.export.export(net.Net(), (torch.ones(3, 4),))
    torch.export.save(captured, receiver / "net.pt2")
    net.library._destroy()
    request = BuildRequest("m", Path(), Path(), {}, {}, {}, program=job.outputs["program"])
    with pytest.raises(GraphRefusedError) as refusal:
        load_captured(request, "Core ML")
    files = {"inputs": {"program": request.program}, "advisory": job.outputs}
    hint = explain_refusal(refusal.value, request, replace(job, **files)).hint
    calls = [f"mine::{name} is called at loose.py:11" for name in ("first", "second", "third")]
    assert hint.startswith("; ".join([*calls, "call other operators in forward"]))

    resolved = manifest(source={"exported_program": "net.pt2", "trusted": True})
    with pytest.raises(StageError) as error:
        export.run(stage_job("export", resolved, tmp_path, receiver))
    listed = LISTED.replace("loose.py", "../loose.py")
    assert error.value.problem.endswith(f"cannot load net.pt2: nothing registers {listed}")
