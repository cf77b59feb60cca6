"""A convolutional classifier of digits with one channel that int8 cannot hold."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx
import torch
from evaluated_digits import TRAINED, Digits, digits
from small_graphs import parse
from torch import nn

POISON = 100.0
NET = """\
from torch import nn


def make():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2), nn.ReLU(),
        nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10),
    )
"""
AUTO = {
    "engines": [
        {"backend": "onnxruntime", "name": "e", "precision": "auto-int8", "intra_op_threads": 1}
    ],
    "calibration": {"data": {"x": {"npz": "calibration.npz"}}, "batches": 2, "algorithm": "minmax"},
}


def network() -> Any:
    space: dict[str, Any] = {}
    exec(NET, space)
    return space["make"]()


@cache
def trained(poison: float = POISON) -> Mapping[str, torch.Tensor]:
    """Train, and scale a channel of the first layer up, and the layer after it down again."""
    images, labels = (torch.from_numpy(array[:TRAINED]) for array in digits())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = network()
        optimizer = torch.optim.Adam(net.parameters(), 5e-3)
        for _ in range(60):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    state = net.state_dict()
    for name in ("0.weight", "0.bias"):
        state[name][3] *= poison
    state["2.weight"][:, 3] /= poison
    return state


def graph(poison: float = POISON) -> onnx.ModelProto:
    text = """(float[batch,1,8,8] x) => (float[batch,10] y) {
        ["/first"] c1 = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
        ["/relu1"] r1 = Relu(c1)
        ["/poisoned"] c2 = Conv <strides = [2, 2]> (r1, w2, b2)
        ["/relu2"] r2 = Relu(c2)
        ["/third"] c3 = Conv <pads = [1, 1, 1, 1]> (r2, w3, b3)
        ["/relu3"] r3 = Relu(c3)
        ["/flat"] f = Flatten(r3)
        ["/head"] y = Gemm <transB = 1> (f, w4, b4) }"""
    state, names = trained(poison), {"1": "0", "2": "2", "3": "4", "4": "7"}
    stored = {f"w{n}": state[f"{layer}.weight"].numpy() for n, layer in names.items()}
    stored |= {f"b{n}": state[f"{layer}.bias"].numpy() for n, layer in names.items()}
    return parse(text, stored)


class PoisonedDigits(Digits):
    """A project with the network and one engine with ``precision: auto``."""

    net = NET
    trained = staticmethod(trained)
    graph = staticmethod(graph)
