"""How often `evaluate` raises false alarms, and how many samples a verdict takes.

    python tests/bench/accuracy_power.py --rebuilds 200

The classifier of docs/examples/accuracy is quantized again and again, on other calibration images.
None of these engines may fail. For the power curve, samples are drawn from the recorded answers of
network and engines, with the sides of each exchanged at random, so that engines lose nothing on
average; then a share of the right answers is made wrong.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from buildsys.backends.onnxruntime.session import OrtGraph, session_options
from buildsys.evaluation.statistics import judge, tango_interval
from buildsys.onnx_graphs.tensors import Case, tensor_of
from buildsys.stages.calibrate import stage as calibrate
from buildsys.stages.convert import quantized
from buildsys.workers.job import Job

EXAMPLE = Path(__file__).parents[2] / "docs/examples/accuracy"
DROP = 0.01
SAMPLES = (200, 400, 800, 1600, 3200, 6400, 12800)
LOSSES = (0.0, 0.005, 0.01, 0.02)
VERDICTS = ("passed", "undecided", "failed")
ALGORITHMS = ("entropy", "minmax", "percentile")
Array = np.ndarray
interval_of = cache(tango_interval)


def verdict(lost: int, gained: int, count: int) -> str:
    """Judge the answers that only one side has right."""
    return judge(interval_of(lost, gained, count), DROP)


class Workbench:
    """The trained network as ONNX in a folder, and its images."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(EXAMPLE))
        import train
        from networks.digits import TRAINED, digits

        self.folder, self.file = folder, folder / "model.onnx"
        torch.manual_seed(0)
        torch.set_num_threads(1)
        network = train.train_digits().eval()
        images, classes = digits()
        self.images, self.x, self.y = images[:TRAINED], images[TRAINED:], classes[TRAINED:]
        ports = {"input_names": ["image"], "output_names": ["scores"]}
        axes = {"image": {0: "batch"}, "scores": {0: "batch"}}
        example = (torch.from_numpy(self.x[:2]),)
        torch.onnx.export(
            network, example, str(self.file), dynamo=False, dynamic_axes=axes, **ports
        )
        with torch.inference_mode():
            scores = network(torch.from_numpy(self.x)).numpy()
        self.original = scores.argmax(axis=1) == self.y

    def rebuild(self, number: int) -> Array:
        """Return which answers of an engine calibrated on other images are right."""
        rows = np.random.default_rng(number).choice(len(self.images), 128, replace=False)
        np.savez(self.folder / "data.npz", image=self.images[rows])
        algorithm = ALGORITHMS[number % len(ALGORITHMS)]
        section = {"algorithm": algorithm, "percentile": 99.99, "batches": 4, "seed": 0}
        section["data"] = {"image": {"npz": "data.npz", "key": "image"}}
        port = {"shape": ["batch", 1, 8, 8], "dtype": "float32"}
        options = {"calibration": section, "inputs": {"image": port}, "dims": {"batch": 32}}
        names = {"batches": "batches.npz", "ranges": "ranges.json", "result": "result.json"}
        files = {name: self.folder / file for name, file in names.items()}
        inputs = {"model": self.file, "ranges": files["ranges"]}
        job = Job(
            "convert", "convert", "digits", "", options, inputs, files, self.folder, threads=1
        )
        calibrate.run(job)
        quantize = {"tool": "builtin", "exclude": (), "outputs": False, "algorithm": algorithm}
        quantize |= {"operators": ("Conv", "Gemm"), "per_channel": number % 2 == 0}
        outputs = files | {"model": self.folder / "converted.onnx"}
        job = replace(job, options={"precision": "int8", "quantize": quantize}, outputs=outputs)
        case = Case({"image": tensor_of(self.x[:4])}, {})
        model = quantized.convert(job, (), {"opt": case}).model
        graph = OrtGraph(model.SerializeToString(), session_options(intra_op_threads=1))
        scores = graph.run({"image": tensor_of(self.x)})["scores"].values()
        return np.asarray(scores.argmax(axis=1) == self.y)


def power(original: Array, engines: Array, loss: float, count: int, draws: int) -> Counter[str]:
    """Count the verdicts on drawn samples of engines with a planted loss."""
    random = np.random.default_rng([count, round(loss * 1e4)])
    verdicts = Counter[str]()
    for _ in range(draws):
        rows = random.integers(0, len(original), count)
        sides = original[rows], engines[random.integers(len(engines))][rows]
        is_exchanged = random.random(count) < 0.5
        before, after = np.where(is_exchanged, sides[::-1], sides)
        planted = after & (random.random(count) < loss / after.mean())
        after = after & ~planted
        verdicts[verdict(int((before & ~after).sum()), int((after & ~before).sum()), count)] += 1
    return verdicts


def table(original: Array, engines: Array, draws: int) -> Iterator[str]:
    """Yield a row per number of samples: passed, undecided and failed, in percent."""
    yield "| samples | " + " | ".join(f"loss {loss * 100:g} %" for loss in LOSSES) + " |"
    yield "|---:|" + "---:|" * len(LOSSES)
    for count in SAMPLES:
        cells = []
        for loss in LOSSES:
            verdicts = power(original, engines, loss, count, draws)
            cells.append(" / ".join(f"{100 * verdicts[v] / draws:.0f}" for v in VERDICTS))
        yield f"| {count:,} | " + " | ".join(cells) + " |"


def main() -> None:
    """Rebuild, and print false alarms and power."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rebuilds", type=int, default=200)
    parser.add_argument("--draws", type=int, default=1000, help="evaluations per cell")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench(Path(folder))
        engines = np.array([bench.rebuild(number) for number in range(arguments.rebuilds)])
    original, count = bench.original, len(bench.original)
    lost = (original & ~engines).sum(axis=1).tolist()
    gained = (~original & engines).sum(axis=1).tolist()
    verdicts = Counter(verdict(a, b, count) for a, b in zip(lost, gained, strict=True))
    losses = (np.array(lost) - gained) / count
    print(f"{len(engines)} rebuilds on {count} samples, {DROP:.0%} allowed:", dict(verdicts))
    print(f"losses {losses.min():.2%} to {losses.max():.2%}, mean {losses.mean():.2%}")
    print("\n".join(table(original, engines, arguments.draws)))
    drawn = sum((power(original, engines, 0.0, n, arguments.draws) for n in SAMPLES), Counter())
    print(f"{drawn['failed']} false alarms of {drawn.total()} draws without a loss")


if __name__ == "__main__":
    main()
