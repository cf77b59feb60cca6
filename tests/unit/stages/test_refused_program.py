"""Refusals of calls in a captured program."""

from pathlib import Path

from buildsys.backends.interface import BuildRequest, GraphRefusedError, UnsupportedNode
from buildsys.stages.common.remedies import explain_refusal
from buildsys.stages.export.origins import write_origins
from buildsys.workers.job import Job


def test_a_refused_call_has_the_line_of_the_user(tmp_path: Path) -> None:
    origins, program = tmp_path / "origins.json", tmp_path / "program.pt2"
    write_origins({"swish": "plugins/net.py:12"}, origins)
    nodes = (
        UnsupportedNode(3, "swish", "my::swish", "no kernel"),
        UnsupportedNode(None, "", "aten::svd", "no kernel"),
    )
    refusal = GraphRefusedError("ExecuTorch cannot take 2 nodes", nodes=nodes)
    request = BuildRequest("m", Path(), tmp_path / "engine.pte", {}, {}, {}, program=program)
    job = Job(
        target="engine:m:e", stage="engine", model="m", variant="e", options={},
        inputs={"program": program}, outputs={}, project=tmp_path, advisory={"origins": origins},
    )  # fmt: skip
    error = explain_refusal(refusal, request, job)
    assert error.problem == refusal.problem
    assert error.hint == (
        "my::swish is called at plugins/net.py:12; call other operators in forward, or build this"
        " engine with another backend"
    )
