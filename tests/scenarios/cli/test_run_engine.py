"""`buildsys run`: a built engine on arrays, without builds, and refused once it is stale."""

import json
import shutil

import numpy as np
from ready_project import FEATURES, ReadyProject

from buildsys.onnx_graphs.tensors import load_case


def test_a_verified_engine_gives_the_golden_outputs(ready_built: ReadyProject) -> None:
    root = ready_built.root
    golden = "build/a/reference/opt.npz"
    ran = ready_built.buildsys("run", "a", "--input", golden, "--output", "out.npz")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("a:ort: ")
    with np.load(root / "out.npz") as outputs:
        expected = load_case(root / golden).outputs["y"].array
        assert np.allclose(outputs["y"], expected, rtol=1e-5, atol=1e-6)

    (root / "labels.txt").write_text("".join(f"class {n}\n" for n in range(FEATURES)))
    shape = f"y: {{shape: [batch, {FEATURES}]"
    ready_built.edit("configs/models/a.yaml", shape, f"{shape}, labels: {{file: labels.txt}}")
    found = ready_built.buildsys("run", "a:ort", "--input", golden, "--json")
    document = json.loads(found.out)
    top = document["outputs"]["y"]["top"][0]
    assert top["index"] == np.argsort(-expected[0], kind="stable")[:5].tolist()
    assert top["label"][0] == f"class {top['index'][0]}"
    # labels are in no key
    assert "everything is up to date" in ready_built.doit().out

    (root / "labels.txt").write_text("one\n")
    failed = ready_built.buildsys("run", "a:ort", "--input", golden)
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("ERROR: outputs.y.labels has 1 names, the output has the shape")

    ready_built.edit("configs/models/a.yaml", "name: ort}", "name: ort, spinning: false}")
    stale = ready_built.buildsys("run", "a", "--input", golden, "--output", "new.npz")
    assert stale.code == 3
    assert "no engine of a can run (ort: engine:a:ort does not match its manifest: " in stale.err
    assert "`buildsys build a` builds and verifies them" in stale.err
    shutil.rmtree(root / "build")
    missing = ready_built.buildsys("run", "a", "--input", "labels.txt", "--output", "new.npz")
    assert "no engine of a can run (ort: not built); `buildsys build a`" in missing.err
    assert not (root / "new.npz").exists()
