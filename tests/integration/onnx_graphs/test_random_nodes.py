import numpy as np
import pytest
from small_graphs import parse

from buildsys.onnx_graphs.random_nodes import random_nodes

STORED = {
    "ratio": np.float32(1e-5), "zero": np.float32(0), "train": np.bool_(True),
    "infer": np.bool_(False), "w": np.ones(4, np.float32),
}  # fmt: skip
BRANCH = "{{ y = If (b) <then_branch = g () => (t) {{ {} }}, else_branch = h () => (e) {{ {} }}> }}"
BN = "BatchNormalization <training_mode = 1> (x, w, w, {}, w)"


@pytest.mark.parametrize(
    ("nodes", "opset", "random"),
    [
        ("{ y = Dropout (x, ratio, train) }", 17, "Dropout"),
        ("{ mode = Not (infer) y = Dropout (x, ratio, mode) }", 17, "Dropout"),
        ("{ y = Dropout (x, ratio, infer) }", 17, ""),
        ("{ off = Constant <value = bool {0}> () y = Dropout (x, ratio, off) }", 17, ""),
        ("{ y = Dropout (x, zero, train) }", 17, ""),
        ("{ y = Dropout (x, ratio) }", 17, ""),
        ("{ y = Dropout <ratio = 0.5> (x) }", 11, ""),
        ("{ y = Dropout <ratio = 0.5> (x) }", 6, "Dropout"),
        ("{ y = Dropout <is_test = 1> (x) }", 6, ""),
        ("{ noise = RandomNormalLike (x) y = Add (x, noise) }", 17, "RandomNormalLike"),
        ("{ noise = RandomNormalLike (x) y = Identity (x) }", 17, ""),
        ("{ noise = RandomNormalLike (x) s = Shape (noise) y = Expand (x, s) }", 17, ""),
        ("{ y, m, v = " + BN.format("w") + " }", 17, "BatchNormalization"),
        ("{ a = Neg (w) y, m, v = " + BN.format("a") + " }", 17, ""),  # from its input
        ("{ y = BatchNormalization (x, w, w, w, w) }", 17, ""),
        ("{ y, m, v = BatchNormalization (x, w, w, w, w) }", 9, "BatchNormalization"),
        (BRANCH.format("t = Bernoulli (x)", "e = Neg (x)"), 17, "Bernoulli"),
        (BRANCH.format("u = Bernoulli (x) t = Abs (x)", "e = Neg (x)"), 17, ""),
        ("{ r = RandomNormalLike (x) " + BRANCH.format("t = Abs (r)", "e = Neg (x)")[1:], 17,
         "RandomNormalLike"),
        ("{ y = my.noisy (x) }", 17, "Bernoulli"),
        ("{ a = my.noisy (x) y = Neg (x) }", 17, ""),
    ],
)  # fmt: skip
def test_random_nodes_that_reach_an_output(nodes: str, opset: int, random: str) -> None:
    function = '<domain: "my", opset_import: ["" : 17]> noisy (i) => (o) { o = Bernoulli (i) }'
    text = f"(float[n,4] x, bool b) => (float[n,4] y) {nodes} {function if 'my.' in nodes else ''}"
    found = random_nodes(parse(text, STORED, opset))
    assert list(found) == ([random] if random else [])
    assert not random or found[random].output[0] in ("y", "noise", "t", "r")
