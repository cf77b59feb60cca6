"""``buildsys inspect`` on an engine that only its library reads: layers, and nodes in them."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_doubles import make_session, run_in, write_result

from buildsys.cli.session import BuildSession
from buildsys.errors import UsageError

CONV = {
    "name": "/conv + /relu", "kind": "CaskConvolution", "precision": "float16", "time_ms": 0.75,
    "share": 0.75, "nodes": ["/conv", "/relu"],
}  # fmt: skip
COPY: dict[str, Any] = {"name": "copy", "kind": "Reformat", "precision": None, "nodes": []}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    session, _ = make_session(tmp_path)
    write_result(session, "engine:net:rtx", status="passed", layer_nodes=[COPY] * 20 + [CONV])
    monkeypatch.setattr(BuildSession, "read_only", lambda *_: session)
    return tmp_path


def test_the_slowest_layers_come_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in(project, "inspect", "net:rtx") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("engine:net:rtx is stale (never built; ")
    titles = lines.index(
        "21 layers      kind             type          time   share  made of"
    )  # fmt: skip
    assert lines[titles + 1].endswith("float16  0.7500 ms  75.0 %  /conv, /relu")
    assert lines[-1] == "1 more layers (--json lists all)"


def test_nodes_have_their_layer(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_in(project, "inspect", "net:rtx", nodes=True) == 0
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "/conv", "/relu",
    ]  # fmt: skip
    assert run_in(project, "inspect", "net:rtx", node="/relu", json=True) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == [{"name": "/relu", "layer": CONV}]
    with pytest.raises(UsageError, match="the graph has no node '/rel'; nearest: /relu"):
        run_in(project, "inspect", "net:rtx", node="/rel")
