"""OpenVINO engines against ``benchmark_app``, for the same IR in turns.

``python tests/bench/openvino_engines.py MODEL.onnx --shape 1,3,224,224 --rounds 5``: each round
runs both, in alternating order, for the same time with one thread and one stream; the medians of
rounds are compared. The engine runs as in a benchmark of ours: a bound call of its session.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from buildsys.backends.interface import BuildRequest, load_backend
from buildsys.manifest.schema.engines import engine_spec
from buildsys.onnx_graphs.tensors import tensor_of

_MEDIAN = re.compile(r"Median:\s+([\d.]+) (ms|us)")


def ours(engine: Path, options: dict[str, object], name: str, shape: list[int], s: float) -> float:
    """Return the median latency of our session in ms."""
    backend = load_backend("openvino")
    session = backend.load(engine, options)
    call = session.bind({name: tensor_of(np.random.default_rng(0).random(shape, np.float32))})
    samples, end = [], time.perf_counter() + s
    while (start := time.perf_counter()) < end:
        call()
        samples.append(time.perf_counter() - start)
    session.close()
    return statistics.median(samples) * 1000


def theirs(engine: Path, precision: str, s: float) -> float:
    """Return the median latency of benchmark_app in ms."""
    command = [
        str(Path(sys.executable).with_name("benchmark_app")), "-m", str(engine), "-d", "CPU",
        "-hint", "none", "-nthreads", "1", "-nstreams", "1", "-nireq", "1", "-api", "sync",
        "-infer_precision", precision, "-ip", "f32", "-pin", "NO", "-t", str(int(s)),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = _MEDIAN.search(done.stdout)
    assert found, done.stdout
    return float(found[1]) / (1000 if found[2] == "us" else 1)


def main() -> None:
    """Print a line per round and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shape", default="1,3,224,224")
    parser.add_argument("--input", default="x")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    asked = parser.parse_args()
    shape = [int(size) for size in asked.shape.split(",")]
    spec = engine_spec("openvino").model_validate(
        {"name": "e", "backend": "openvino", "threads": 1, "precision": asked.precision}
    )
    options = spec.model_dump(mode="json")
    hint = {"fp32": "f32", "bf16": "bf16"}[asked.precision]
    with tempfile.TemporaryDirectory() as folder:
        engine = Path(folder) / "engine.xml"
        inputs = {asked.input: {"shape": shape}}
        load_backend("openvino").build(BuildRequest("m", asked.model, engine, options, inputs, {}))
        pairs = []
        for number in range(asked.rounds):
            both = [0.0, 0.0]
            for side in (0, 1) if number % 2 else (1, 0):
                both[side] = (
                    theirs(engine, hint, asked.seconds)
                    if side
                    else ours(engine, options, asked.input, shape, asked.seconds)
                )
            pairs.append(both)
            print(f"round {number + 1}: ours {both[0]:.3f} ms, benchmark_app {both[1]:.3f} ms")
    medians = [statistics.median(side) for side in zip(*pairs, strict=True)]
    ratio = medians[0] / medians[1]
    print(json.dumps({"ours_ms": medians[0], "benchmark_app_ms": medians[1], "ratio": ratio}))


if __name__ == "__main__":
    main()
