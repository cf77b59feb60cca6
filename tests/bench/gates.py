"""Power and false alarms of gates on latency, with real engines.

Two networks differ by the work of one layer in ten. Fresh processes time the engine of the first,
that engine again, and the engine of the second, in turns and in ABBA order, as the gate
stage does. Real repetitions apply the rule of the gates to rounds that no other one has used: the
same engine must pass, the slower one fail. Simulated ones draw rounds with replacement from all
those measured and make one side slower by a factor, which gives the power curve.

On a GPU: ``--backend tensorrt --python PYTHON_WITH_TENSORRT --width 1024 --repetitions 20``.
"""

import argparse
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from _harness import ROOT, doit_command, environment, publish, workspace
from onnx import TensorProto, helper, numpy_helper

from buildsys.backends.measurement import GpuTiming
from buildsys.cli.session import BuildSession
from buildsys.history.statistics import LOOKS, compare_rounds, median
from buildsys.stages.bench.timed_engine import RemoteEngine
from buildsys.stages.gate.stage import OpenEngine, RoundPace, measure_process
from buildsys.system.toolchains import Toolchain

TOLERANCE = 0.05
SLOWDOWNS = (0.0, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1)
VERDICTS = ("failed", "undecided", "passed")
SAME, BASE, SLOW = "same", "base", "slow"
Rounds = dict[str, list[float]]  # side -> median latency in seconds, one per round
Pair = tuple[float, float]
Verdict = tuple[str, int] | None  # one of VERDICTS, and the rounds it took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=40, help="(default: %(default)s)")
    parser.add_argument("--trials", type=int, default=2000, help="simulated (default: %(default)s)")
    parser.add_argument("--duration", type=float, default=0.5, help="of a process, in s")
    parser.add_argument("--limit", type=float, default=math.inf, help="most time for rounds, in s")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--python", default="", help="interpreter with the backend's library")
    parser.add_argument("--width", type=int, default=256, help="of the layers")
    parser.add_argument("--layers", type=int, default=20, help="of the faster network")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    with workspace() as folder:
        rounds = collect(folder, given)
    figures = evaluate(rounds, given.trials)
    rows = [(name, *map(str, cells)) for name, *cells in figures["table"]]
    columns = ("comparison", "mean rounds>", "repetitions>", *(f"{one}>" for one in VERDICTS))
    title = f"Gates at a tolerance of 5 %; the slower engine takes {figures['slower_by']:+.1%}"
    publish(title, columns, rows, {**figures, "rounds": rounds}, given.json)


def collect(folder: Path, given: argparse.Namespace) -> Rounds:
    """Build both engines and return the medians of all rounds."""
    make_project(folder, given)
    targets = (f"verify:{BASE}:e", f"verify:{SLOW}:e")
    subprocess.run(
        doit_command(*targets), cwd=folder, env=environment(), check=True, stdout=sys.stderr
    )
    session = BuildSession.read_only(folder)
    sides: dict[str, OpenEngine] = {}
    toolchain = Toolchain("measured", Path(given.python or sys.executable), {})
    place = {"project": folder, "folder": folder / "build"}
    for model in (BASE, SLOW):
        action = session.actions[f"gate:{model}:e"]
        inputs = {role: folder / "build" / ref.path for role, ref in action.inputs.items()}
        options, gpu = action.options, action.options.get("gpu")
        sides[model] = partial(
            RemoteEngine, toolchain, given.backend, inputs["engine"], options["engine"], (), **place
        )
        timing = GpuTiming(**{**gpu, "cuda_graph": tuple(gpu["cuda_graph"])}) if gpu else None
        case = inputs[f"case.{options['case']}"]
        pace = RoundPace(case, timing, options["warmup"], given.duration)
    sides[SAME] = sides[BASE]
    found: Rounds = {SAME: [], BASE: [], SLOW: []}
    order, begun = list(found), time.monotonic()
    known = 0
    while known < given.repetitions and time.monotonic() - begun < given.limit:
        measured = {name: measure_process(sides[name], pace)["latency"] for name in order}
        for name, latency in measured.items():
            found[name].append(latency)
        order.reverse()
        if len(found[BASE]) % LOOKS[0][0] == 0:
            known = min(len(repetitions(found, side)) for side in (SAME, SLOW))
            text = f"{len(found[BASE])} rounds, {known} of {given.repetitions} repetitions"
            print(text, file=sys.stderr, flush=True)
    return found


def make_project(folder: Path, given: argparse.Namespace) -> None:
    engine: dict[str, Any] = {"name": "e", "backend": given.backend}
    project: dict[str, Any] = {}
    if given.backend == "onnxruntime":
        engine["intra_op_threads"] = 1
    else:
        engine["tf32"] = False  # its errors are beyond the default limits of verify
        if sources := os.environ.get("BUILDSYS_TEST_TACTIC_SOURCES"):
            engine["tactic_sources"] = sources.split(",")
    if given.python:
        engine["toolchain"] = "measured"
        project["toolchains"] = {"measured": {"python": given.python}}
    (folder / "configs/models").mkdir(parents=True)
    (folder / "dodo.py").write_bytes((ROOT / "dodo.py").read_bytes())
    (folder / "configs/project.yaml").write_text(yaml.safe_dump(project))
    for name, layers in ((BASE, given.layers), (SLOW, given.layers * 11 // 10)):
        onnx.save(network(layers, given.width), folder / f"{name}.onnx")
        manifest = {
            "model": name,
            "source": {"onnx": f"{name}.onnx"},
            "inputs": {"x": {"shape": ["batch", given.width]}},
            "outputs": {"y": {"shape": ["batch", given.width]}},
            "dims": {"batch": {"min": 1, "opt": 64, "max": 64}},
            "engines": [engine],
            "bench": {"baselines": [], "warmup": "50ms"},
            "gates": {"latency": {"tolerance": TOLERANCE}},
        }
        (folder / f"configs/models/{name}.yaml").write_text(yaml.safe_dump(manifest))


def network(layers: int, width: int) -> onnx.ModelProto:
    """Return a chain of equal layers, so each one costs the same."""
    draw = np.random.default_rng(0)
    nodes, weights, tensor = [], [], "x"
    for number in range(layers):
        values = (draw.standard_normal((width, width)) / math.sqrt(width / 2)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [tensor, f"w{number}"], [f"h{number}"]))
        tensor = "y" if number == layers - 1 else f"r{number}"
        nodes.append(helper.make_node("Relu", [f"h{number}"], [tensor]))
    ports = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])] for name in "xy"
    ]
    graph = helper.make_graph(nodes, "chain", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def evaluate(rounds: Rounds, trials: int) -> dict[str, Any]:
    """Apply the rule to disjoint runs of real rounds, and to simulated ones."""
    table = []
    for side, name in ((SAME, "real, the same engine"), (SLOW, "real, the slower engine")):
        table.append(row(name, repetitions(rounds, side)))
    draw = random.Random(0)
    pairs = list(zip(rounds[BASE], rounds[SAME], strict=True))

    def slowed(slowdown: float) -> Iterator[Pair]:
        while True:  # sides exchanged at random: a few hundred rounds have a shift of their own
            before, after = draw.choice(pairs)[:: draw.choice((1, -1))]
            yield before, after * (1 + slowdown)

    for slowdown in SLOWDOWNS:
        found = [verdict(slowed(slowdown)) for _ in range(trials)]
        table.append(row(f"simulated, {slowdown:.1%} slower", found))
    logs = [math.log(b / a) for a, b in zip(rounds[BASE], rounds[SLOW], strict=True)]
    return {"table": table, "slower_by": math.expm1(median(logs))}


def repetitions(rounds: Rounds, side: str) -> list[Verdict]:
    """Return the verdicts on a side, each from the rounds after those of the previous one."""
    pairs, found = zip(rounds[BASE], rounds[side], strict=True), []
    while (one := verdict(pairs)) is not None:
        found.append(one)
    return found


def verdict(pairs: Iterator[Pair]) -> Verdict:
    """Take as many pairs as the gate stage would; None: there are too few."""
    taken: list[Pair] = []
    for count, confidence in LOOKS:
        taken += islice(pairs, count - len(taken))
        if len(taken) < count:
            return None
        change = compare_rounds(
            *zip(*taken, strict=True), TOLERANCE, more_is_better=False, confidence=confidence
        )
        if not change.is_undecided:
            return "failed" if change.is_regression else "passed", count
    return "undecided", count


def row(name: str, found: list[Verdict]) -> tuple[Any, ...]:
    known = [one for one in found if one is not None]
    words = [word for word, _ in known]
    shares = (f"{words.count(one) / max(1, len(words)):.1%}" for one in VERDICTS)
    used = sum(count for _, count in known) / max(1, len(known))
    return name, f"{used:.1f}", len(words), *shares


if __name__ == "__main__":
    main()
