"""What evaluating samples costs beyond running the engine over them.

    python tests/bench/evaluation_cost.py --samples 10000

Networks of convolutions classify images of an .npz file. In turns, an engine runs over the arrays
in memory, and `evaluate` makes its records from the file: read, run, digest, compare with labels.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.evaluation.metrics import load_metric
from buildsys.evaluation.recording import record
from buildsys.onnx_graphs.tensors import tensor_of

BATCH, SIZE = 32, 32
CHANNELS = (4, 16, 32, 64)


def network(channels: int) -> nn.Module:
    """Make four convolutions of images of 3 by 32 by 32 values."""
    layers: list[nn.Module] = []
    for number in range(4):
        layers += [nn.Conv2d(channels if number else 3, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def compare(folder: Path, channels: int, rounds: int) -> tuple[float, float]:
    """Return the seconds of running the engine, and the ratio of evaluating to it."""
    file = folder / f"{channels}.onnx"
    axes = {"image": {0: "batch"}, "scores": {0: "batch"}}
    torch.onnx.export(
        network(channels), (torch.zeros(2, 3, SIZE, SIZE),), str(file), dynamo=False,
        input_names=["image"], output_names=["scores"], dynamic_axes=axes,
    )  # fmt: skip
    session = OrtGraph(file, session_options(intra_op_threads=1))
    images = np.load(folder / "samples.npz")["image"]
    inputs = {"image": {"shape": ["batch", 3, SIZE, SIZE], "dtype": "float32"}}
    span = {"min": 1, "opt": BATCH, "max": BATCH, "multiple_of": 1}
    data = {"npz": "samples.npz", "labels": "label"}
    options = {"data": data, "metric": "top1", "dims": {"batch": span}, "preprocess": {}}
    options |= dict.fromkeys(("output", "postprocess", "batch_size", "samples", "classes"))
    metric = load_metric("top1", options, folder)
    plain, ratios = [], []
    for _ in range(rounds):
        begun = time.perf_counter()
        for start in range(0, len(images), BATCH):
            session.run({"image": tensor_of(images[start : start + BATCH])})
        middle = time.perf_counter()
        record(options, inputs, folder, metric, session.run, lambda *_: None)
        plain.append(middle - begun)
        ratios.append((time.perf_counter() - middle) / plain[-1])
    return median(plain), median(ratios)


def main() -> None:
    """Print a row per network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = random.random((given.samples, 3, SIZE, SIZE), np.float32)
        np.savez(folder / "samples.npz", image=images, label=random.integers(0, 10, given.samples))
        print("| channels | engine, µs per sample | evaluating, ratio to it |\n|---:|---:|---:|")
        for channels in CHANNELS:
            seconds, ratio = compare(folder, channels, given.rounds)
            print(f"| {channels} | {seconds / given.samples * 1e6:.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
