"""``buildsys bisect`` with real builds: fields, files, commits, and builds with lost changes."""

import os
import shutil
from typing import Any

import numpy as np
import onnx
import pytest
from command_answers import answer, commit, git
from ready_project import NETWORK, VALUES, ReadyProject
from sklearn.datasets import load_digits

MANIFEST = "configs/models/a.yaml"
DIGITS = """
model: digits
source: {onnx: networks/digits.onnx}
inputs: {x: {shape: [batch, 64]}}
outputs: {y: {shape: [batch, 10]}}
dims: {batch: {min: 1, opt: 2, max: 4}}
engines: [{backend: onnxruntime, name: ort}]
evaluate: {data: {npz: data/val.npz}, metric: top1, drop: 2%}
"""


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


def test_pruned_weights_lower_the_accuracy_and_the_shared_cache_has_both_builds(
    ready: ReadyProject,
) -> None:
    root, manifest = ready.root, "configs/models/digits.yaml"
    images, digits = load_digits(return_X_y=True)
    inputs = np.c_[images / 16, np.ones(len(images))].astype(np.float32)
    weights = np.linalg.lstsq(inputs[:1000], np.eye(10, dtype=np.float32)[digits[:1000]])[0]
    graph = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[batch,64] x) => (float[batch,10] y) { y = Gemm(x, w, b) }"""
    )
    stored = [
        onnx.numpy_helper.from_array(w, n) for w, n in ((weights[:64], "w"), (weights[64], "b"))
    ]
    graph.graph.initializer.extend(stored)
    onnx.save(graph, root / "networks/digits.onnx")
    (root / "data").mkdir()
    np.savez(root / "data/val.npz", x=inputs[1000:, :64], labels=digits[1000:])
    (root / manifest).write_text(DIGITS)
    (root / "configs/project.yaml").write_text("cache: {remote: data/shared, mode: read-write}\n")
    git(root, "init", "-q")
    commit(root, "first")
    assert ready.doit("evaluate:digits:ort").code == 0
    weights[:64:3] = 0
    graph.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weights[:64], "w"))
    onnx.save(graph, root / "networks/digits.onnx")
    ready.edit(manifest, "max: 4", "max: 8")
    commit(root, "prune")
    assert ready.doit("evaluate:digits:ort").code == 0
    shutil.rmtree(root / ".buildsys/store")
    shared = {*(root / "data/shared").rglob("*")}
    command = ("--figure", "accuracy", "--good", "HEAD~1", "--bad", "HEAD")
    document = answer(ready, "bisect", "digits:ort", *command)
    assert cause(document) == [["networks/digits.onnx changed"]]
    good, bad, *others = document["steps"]
    assert (good["built"], bad["built"]) == (0, 0)
    assert sum(step["built"] for step in others) > 0
    assert {*(root / "data/shared").rglob("*")} == shared
    before, after = (float(step["text"].removeprefix("accuracy ")) for step in (good, bad))
    assert before > after + 0.2


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
