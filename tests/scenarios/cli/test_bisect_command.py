"""``buildsys bisect`` with real builds: fields, files, commits, and builds with lost changes."""

import os
from typing import Any

import onnx
import pytest
from command_answers import answer, commit, git
from ready_project import NETWORK, VALUES, ReadyProject

MANIFEST = "configs/models/a.yaml"


def cause(document: dict[str, Any]) -> list[list[str]]:
    return [[each["text"] for each in group] for group in document["cause"]]


def test_the_commit_and_the_field_behind_a_larger_error_are_found_once_and_then_restored(
    ready: ReadyProject,
) -> None:
    root = ready.root
    git(root, "init", "-q")
    (root / ".git/info/exclude").write_text("calls\n")
    commit(root, "first")
    ready.edit(MANIFEST, "max: 4", "max: 8")
    commit(root, "more batches")
    ready.edit(MANIFEST, "name: ort", "name: ort, precision: fp16")
    ready.edit(VALUES, "SCALE = 1.0", "SCALE = 1.25")
    commit(root, "half precision")
    before = git(root, "status", "--porcelain"), (root / MANIFEST).read_text()
    command = ("bisect", "a:ort", "--figure", "error", "--good", "HEAD~2", "--json")
    for states in ("built", "restored"):
        document = answer(ready, *command)
        assert cause(document) == [['engine.precision: "fp32" → "fp16"']]
        assert (document["subject"], document["confidence"]) == ("half precision", 1.0)
        assert (document["bad_alone"], document["good_without"]) == (True, True)
        assert len(document["differences"]) == 2
        assert document[states] > 4 * (states == "restored")
    assert document["built"] == 0
    assert (git(root, "status", "--porcelain"), (root / MANIFEST).read_text()) == before


def test_recorded_builds_without_commits_are_compared_by_fields_and_present_files(
    ready: ReadyProject,
) -> None:
    assert ready.doit("verify:a:ort").code == 0
    ready.edit(MANIFEST, "tool: onnxsim", "tool: none")
    ready.edit(MANIFEST, "name: ort", "name: ort, precision: fp16")
    assert ready.doit("verify:a:ort").code == 0
    larger = ("bisect", "a:ort", "--figure", "error", "--good", "@previous", "--bad", "@last")
    ran = ready.buildsys(*larger)
    assert ran.code == 0, ran.err
    assert '  engine.precision: "fp32" → "fp16"\n' in ran.out
    assert "bad when applied alone, good without it" in ran.out
    swapped = ready.buildsys(*larger[:4], "--good", "@last", "--bad", "@previous")
    assert (swapped.code, swapped.out) == (1, "")
    assert "the bad build is not worse: error" in swapped.err
    ready.write_network(3)
    gone = ready.buildsys(*larger)
    assert gone.code == 3
    assert (
        "had another networks/net.onnx, which no commit has; name a commit, or --bad now"
        in gone.err
    )
    for names, problem in (
        (("a", "--figure", "error", "--good", "now"), "stands for 9 targets"),
        (("a:ort", "--figure", "error", "--good", "v9"), "there is no build or git revision 'v9'"),
        (("a:ort", "--figure", "accuracy", "--good", "now"), "plans no evaluate:a:ort"),
    ):
        wrong = ready.buildsys("bisect", *names)
        assert (wrong.code, wrong.out) == (3, "")
        assert problem in wrong.err


@pytest.mark.skipif(
    os.environ.get("BUILDSYS_LONG_TESTS", "0") in ("", "0"),
    reason="measures for a minute; run with BUILDSYS_LONG_TESTS=1",
)
def test_gates_find_what_made_an_engine_slower(ready: ReadyProject) -> None:
    root = ready.root
    git(root, "init", "-q")
    commit(root, "first")
    ready.edit(VALUES, "SCALE = 1.0", "SCALE = 1.25")
    graph = onnx.load(root / NETWORK)
    (output,) = [node for node in graph.graph.node if node.output[0] == "y"]
    output.output[0] = "y0"
    for number in range(30):
        node = onnx.helper.make_node("MatMul", [f"y{number}", "w"], [f"y{number + 1}"])
        graph.graph.node.append(node)
    graph.graph.node[-1].output[0] = "y"
    onnx.save(graph, root / NETWORK)
    document = answer(ready, "bisect", "a:ort", "--figure", "latency", "--good", "HEAD")
    assert cause(document) == [[f"{NETWORK} changed"]]
    assert 0.9 < document["confidence"] < 1
