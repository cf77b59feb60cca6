"""``buildsys inspect`` and ``buildsys compare`` on graphs of real stages."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from command_answers import git
from project_folder import TIMEOUT_S, Ran
from ready_project import FEATURES, ReadyProject

from buildsys.report.formatting import TIMES

NET = "a"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fails(ran: Ran, code: int, *sentences: str) -> None:
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.count("\n") == 1
    for sentence in sentences:
        assert sentence in ran.err


def test_inspect_shows_a_graph(ready_built: ReadyProject) -> None:
    build, state = (
        contents(ready_built.root / "build"),
        (ready_built.root / ".buildsys/state.db").read_bytes(),
    )
    ran = ready_built.doit("inspect", f"{NET}")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith(
        "simplify:a: build/a/simplify/model.onnx, "
    )  # up to date: nothing to say about that
    for part in ("opsets      ai.onnx 17", f"x: float32 [batch, {FEATURES}]", "131 k at batch = 2"):
        assert part in ran.out
    assert len(lines) < 40
    assert ready_built.buildsys("inspect", f"{NET}:simplify").out == ran.out
    found = json.loads(ready_built.doit("inspect", f"{NET}:export", "--json").out)
    assert (found["schema"], found["graph"]["state"]) == ("buildsys/inspect/1", "fresh")
    assert found["operators"] == {"Add": 1, "Identity": 1, "MatMul": 1}
    assert found["macs"]["total"] == 2 * FEATURES**2
    assert found["tensors"]["v"]["consumers"] == [
        next(n["label"] for n in found["nodes"] if n["operator"] == "MatMul")
    ]
    assert contents(ready_built.root / "build") == build
    assert (ready_built.root / ".buildsys/state.db").read_bytes() == state

    table = ready_built.doit("inspect", f"{NET}:export", "--nodes").out
    assert re.search(r"MatMul +- +x, v +→ z \[batch, 256\] +131 k", table)
    node = ready_built.doit("inspect", f"{NET}:export", "--node", "z").out
    assert "x: float32 [batch, 256] from input" in node
    assert "z: float32 [batch, 256] to y" in node
    tensors = ready_built.doit("inspect", f"{NET}:export", "--tensor", "*").out
    assert re.search(r"initializer .*: float32 \[256, 256\]\n.*\n.*\n  values +min -\d", tensors)
    assert "… 65,536 in all" in tensors
    assert "input x: float32 [batch, 256]" in tensors
    assert ready_built.doit("inspect", f"{NET}:engine").out.startswith(
        "engine:a:ort: build/a/engine/ort/engine.onnx, "
    )


def test_a_stale_graph_has_a_note_and_mistakes_are_one_line(ready_built: ReadyProject) -> None:
    ready_built.edit(
        f"configs/models/{NET}.yaml", "{tool: onnxsim}", "{tool: onnxsim, fuse: false}"
    )
    first = ready_built.doit("inspect", f"{NET}").out.splitlines()[0]
    assert first.startswith(
        "simplify:a is stale (simplify.fuse: true → false); shown is the graph built "
    )
    assert first.endswith("`buildsys build simplify:a` rebuilds it")
    ready_built.add_model("other")
    for arguments, code, sentence in (
        (("inspect", "othr"), 3, "there is no model 'othr'; nearest: other"),
        (("inspect", "other"), 2, "simplify:other has not been built; `buildsys build simplify:o"),
        (("inspect", "a", "--node", "MatMl"), 3, "the graph has no node 'MatMl'"),
        (("inspect", "a", "--nodes", "--svg", "x.svg"), 3, "--svg: not allowed with argument --n"),
        (("inspect", "a", "--depth", "3"), 3, "select a part to draw; add --svg FILE"),
        (("compare", "a:export", "other:export"), 3, "two models are not comparable, found a and"),
        (("compare", "a:simplify@previous"), 3, "the history has only one model of simplify:a"),
        (("inspect", "a", "--serve", "--port", "99999"), 2, "port 99999 cannot be used"),
    ):
        fails(ready_built.doit(*arguments), code, sentence)
    (ready_built.root / "build/a/simplify/model.onnx").write_bytes(b"\xff" * 50)
    fails(ready_built.doit("inspect", "a"), 2, "model.onnx cannot be read as ONNX")
    assert not (ready_built.root / "x.svg").exists()


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_a_picture_is_written(ready_built: ReadyProject) -> None:
    ran = ready_built.doit("inspect", f"{NET}:export", "--svg", "net.svg")
    assert (ran.code, ran.out) == (0, "wrote net.svg: 2 nodes in 2 boxes\n")
    picture = (ready_built.root / "net.svg").read_bytes()
    answer = json.loads(
        ready_built.doit("inspect", f"{NET}:export", "--json", "--svg", "again.svg").out
    )
    assert (answer["nodes"], answer["boxes"], answer["svg"]) == (2, 2, "again.svg")
    assert (ready_built.root / "again.svg").read_bytes() == picture
    assert (
        "1 node"
        in ready_built.doit("inspect", f"{NET}:export", "--svg", "part.svg", "--from", "z").out
    )


def test_graphs_of_stages_and_builds_are_compared(ready_built: ReadyProject) -> None:
    doit = ready_built.doit
    ran = doit("compare", f"{NET}:export", f"{NET}:simplify")
    assert ran.code == 0, ran.err
    assert "a: export → simplify: 3 → 2 nodes" in ran.out
    assert re.search(rf"removed +1 {TIMES} Identity", ran.out)
    answer = json.loads(doit("compare", f"{NET}:export", f"{NET}:simplify", "--json").out)
    assert (answer["schema"], answer["nodes"]) == ("buildsys/diff/1", [3, 2])
    assert (
        doit("compare", f"{NET}:simplify", f"{NET}:simplify@last").out.splitlines()[-1]
        == "a: simplify → simplify@last: 2 → 2 nodes, no difference"
    )

    git(ready_built.root, "init", "-q")
    git(ready_built.root, "add", "dodo.py", "configs", "plugins", "networks")
    for factor in (1, 2):
        ready_built.write_network(factor)
        git(ready_built.root, "commit", "-qam", f"network {factor}")
        ran = doit(f"simplify:{NET}")
        assert ran.code == 0, ran.out
    for when in ("previous", "HEAD~1"):
        before = doit("compare", f"{NET}:simplify@{when}")
        assert before.code == 0, before.err
        assert f"simplify@{when} was built " in before.out.splitlines()[0]
        assert re.search(rf"changed +1 {TIMES} MatMul with other weights", before.out)
    since = json.loads(doit("compare", f"{NET}:simplify@HEAD~1", "--json").out)
    assert [graph["state"] for graph in since["graphs"]] == ["stored", "fresh"]
    git(ready_built.root, "commit", "-q", "--allow-empty", "-m", "nothing built")
    same = doit("compare", f"{NET}:simplify@HEAD").out.splitlines()
    assert same[0].startswith("HEAD was not built; shown is its ancestor ")
    assert same[1].endswith("no difference")
    fails(doit("compare", f"{NET}:simplify@nowhere"), 3, "there is no", "'nowhere'")


def test_netron_serves_until_it_is_interrupted(ready_built: ReadyProject) -> None:
    pytest.importorskip("netron")
    process = ready_built.start("inspect", f"{NET}:export", "--serve")
    try:
        address = re.match(
            r"serving at (http://127\.0\.0\.1:\d+); stop with Ctrl-C", process.stdout.readline()
        )
        assert address is not None
        with urllib.request.urlopen(f"{address[1]}/data/model.onnx", timeout=30) as served:
            assert served.read() == (ready_built.root / "build/a/export/model.onnx").read_bytes()
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.communicate()


def test_without_netron_the_install_command_is_printed(ready_built: ReadyProject) -> None:
    code = "import sys; sys.modules['netron'] = None; from buildsys.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "inspect", NET, "--serve"],
        cwd=ready_built.root, env=ready_built.environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "netron is not installed; `pip install 'buildsys[netron]'`" in done.stderr
