"""`buildsys evaluate`: built engines on other data, which leaves the build as it is."""

import json

import numpy as np
from ready_project import FEATURES, ReadyProject

from buildsys.onnx_graphs.tensors import load_case

DATA = "evaluate: {data: {npz: none.npz}, metric: top1, drop: 10%}\n"


def test_built_engines_are_evaluated_on_other_data(ready_built: ReadyProject) -> None:
    root, rng = ready_built.root, np.random.default_rng(0)
    case = load_case(root / "build/a/reference/opt.npz")
    values = rng.normal(size=(60, FEATURES)).astype("float32")
    values[0] = case.inputs["x"].array[0]
    labels = rng.integers(0, FEATURES, 60)
    labels[0] = case.outputs["y"].array[0].argmax()
    (root / "data").mkdir()
    np.savez(root / "data/new.npz", x=values, labels=labels)
    build = {path: path.read_bytes() for path in (root / "build").rglob("*") if path.is_file()}

    def evaluate(*arguments: str) -> tuple[int, str]:
        ran = ready_built.buildsys("evaluate", *arguments)
        return ran.code, ran.out + ran.err

    few = evaluate("a", "--data", "data/new.npz", "--metric", "top1")
    assert few[0] == 1  # of 60 samples 1 % cannot be told
    assert "top-1 of the original model: " in few[1]
    assert "undecided" in few[1]
    answer = json.loads(
        evaluate("a:ort", "--data", "data/new.npz", "--metric", "top5", "--json")[1]
    )
    (engine,) = answer["engines"]
    assert (engine["engine"], engine["verdict"], engine["loss"]) == ("ort", "undecided", 0.0)
    assert answer["original"]["samples"] == 60
    assert answer["original"]["value"] >= 1 / 60

    code, text = evaluate("a", "--data", "data/new.npz")
    assert (code, text) == (
        3,
        "ERROR: the manifest of a has no metric; add --metric, such as top1\n",
    )
    code, text = evaluate("a", "--data", "data/old.npz", "--metric", "top1")
    assert (code, "there is no file data/old.npz" in text) == (3, True)
    code, text = evaluate("a", "--data", "data", "--metric", "top1")
    assert (code, "no input has the steps from an image file" in text) == (3, True)
    manifest = root / "configs/models/a.yaml"
    manifest.write_text(manifest.read_text() + DATA)
    (root / "none.npz").touch()
    assert evaluate("a", "--data", "data/new.npz")[0] == 0  # its metric and drop
    assert build == {path: path.read_bytes() for path in build}
    assert {*build} == {path for path in (root / "build").rglob("*") if path.is_file()}
    ready_built.edit("configs/models/a.yaml", "name: ort}", "name: ort, spinning: false}")
    code, text = evaluate("a", "--data", "data/new.npz")
    assert (code, "no engine of a is built and up to date" in text) == (3, True)
