"""Capacity that the target ``load`` predicts, against that of a server on a real socket.

The server is a process with a thread per connection around ``load_engine``; a client in another
process sends requests at random times over 127.0.0.1, with whole inputs (images of uint8, as they
are decoded) and outputs. Both sides search for the largest rate whose 99th percentile is within the
same limit, a multiple of the median latency. An engine needs ``--instances`` times ``--threads``
processors, and the sockets a few more.

Machines change their speed, so both take turns: each measurement of the server is compared with the
predictions before and after it. Both sides have the same arrivals in proportion. With others, two
equal queues differ as well: in a simulation of 4 instances with the times of this script by 9 % on
average, and by 0.2 % with the same.
"""

import argparse
import json
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import yaml
from _harness import environment, log, publish, workspace

from buildsys import load_engine
from buildsys.deploy.engine import Engine
from buildsys.history.statistics import median
from buildsys.stages.load.capacity import Capacity, explore, find_capacity
from buildsys.stages.load.open_loop import OpenLoop
from buildsys.system.cpu import OtherLoad

MODELS = (
    "resnet18", "resnet34", "resnet50", "mobilenet_v2", "efficientnet_b0", "regnet_y_1_6gf",
    "densenet121", "mnasnet1_0",
)  # fmt: skip
PIXELS = {"inside": True, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
FIELDS = {"onnxruntime": "intra_op_threads", "openvino": "threads"}
LIMIT = 0.05
NEAR = (0.8, 0.9, 1.0, 1.1, 1.25)  # rates of the socket, times the predicted one
QUIET = 0.1  # share of the processors that others may use
COLUMNS = (
    "engine", "p99 limit (ms)>", "predicted/s", "socket/s", "difference>", "others>", "doubts",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--backends", default="onnxruntime", help=f"of {', '.join(FIELDS)}")
    parser.add_argument("--instances", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1, help="of an instance")
    parser.add_argument("--size", type=int, default=224, help="of the square input (default: 224)")
    parser.add_argument("--rounds", type=int, default=3, help="of both sides (default: 3)")
    parser.add_argument("--limit", type=float, default=4, help="p99 over the median (default: 4)")
    parser.add_argument("--seconds", type=float, default=1.2, help="at each rate (default: 1.2)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve[0], int(given.serve[1]), json.loads(given.serve[2]))
        return
    models, backends = given.models.split(","), given.backends.split(",")
    if unknown := {*backends} - FIELDS.keys():
        parser.error(f"unknown backends: {', '.join(unknown)}")
    with workspace() as folder:
        engines = [(model, backend) for model in models for backend in backends]
        build(folder, given, [f"engine:{model}:{backend}" for model, backend in engines])
        figures = [compare(folder, given, *engine) for engine in engines]
    rows = [row(figure) for figure in figures]
    title = f"predicted capacity and a socket, {given.instances} instances"
    publish(f"{title} of {given.threads} threads", COLUMNS, rows, figures, given.json)
    steady = [figure for figure in figures if not doubts_of(figure)]
    log(f"{len(steady)} of {len(figures)} engines were measured without a doubt")
    if wrong := [f["engine"] for f in steady if not abs(f["difference"]) <= LIMIT]:
        raise SystemExit(f"differ by more than {LIMIT:.0%}: {', '.join(wrong)}")


def build(folder: Path, given: argparse.Namespace, targets: Sequence[str]) -> None:
    """Build the engines of a new project; seconds for each are spent in PyTorch."""
    models = folder / "configs/models"
    models.mkdir(parents=True)
    (folder / "buildsys.toml").touch()
    for model in dict.fromkeys(target.split(":")[1] for target in targets):
        write_manifest(folder, given, model)
    log(f"building {len(targets)} engines")
    buildsys(folder, "-n", str(len(os.sched_getaffinity(0))), *targets)


def write_manifest(
    folder: Path, given: argparse.Namespace, model: str, load: dict[str, Any] | None = None
) -> None:
    """Write the manifest of a network with random weights, perhaps with a load."""
    manifest: dict[str, Any] = {
        "model": model,
        "source": {"torchvision": model, "weights": None, "seed": 0},
        "inputs": {"x": {"shape": [1, 3, given.size, given.size], "preprocess": PIXELS}},
        "engines": [
            {"name": backend, "backend": backend, **extra}
            for backend, extra in (("onnxruntime", {"spinning": False}), ("openvino", {}))
            if backend in given.backends.split(",")
        ],
    }
    if load:
        manifest["bench"] = {"load": load}
    (folder / f"configs/models/{model}.yaml").write_text(yaml.safe_dump(manifest))


def buildsys(folder: Path, *arguments: str) -> None:
    """Run ``buildsys build``; a failure ends the script."""
    command = [sys.executable, "-m", "buildsys", "build", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-3000:])


def compare(folder: Path, given: argparse.Namespace, model: str, backend: str) -> dict[str, Any]:
    """Predict the capacity of an engine, and measure that of its server."""
    engine, field = folder / "build" / model / "engine" / backend, FIELDS[backend]
    streams = {"streams": given.instances} if backend == "openvino" else {}
    threads = given.threads * (given.instances if streams else 1)  # of all streams
    options = {field: threads, **streams}
    limit_ms = round(given.limit * median_ms(engine, options), 2)
    log(f"{model}:{backend}: p99 < {limit_ms} ms, predicting")
    load = {"p99": f"{limit_ms}ms", "instances": [given.instances], "threads": [threads]}
    write_manifest(folder, given, model, {**load, "duration": given.seconds})

    def predict() -> dict[str, Any]:
        buildsys(folder, "--force", "--single", f"load:{model}:{backend}")
        result = json.loads((folder / f"build/{model}/load/{backend}.json").read_text())
        (setting,) = result["settings"]
        return dict(setting)

    settings, servers, points, shares = [predict()], list[Capacity](), [], [0.0]
    with server(engine, given.instances, options) as (port, process):
        for _ in range(given.rounds):
            predicted = settings[-1]["capacity_per_s"]
            log(f"{model}:{backend}: {predicted:.1f}/s predicted, measuring the server")
            others = OtherLoad((process.pid,))
            measured, around = socket_capacity(
                port, engine, 4 * given.instances, [predicted * share for share in NEAR],
                limit_ms, given.seconds,
            )  # fmt: skip
            shares.append(others.share() or 0.0)
            servers.append(measured)
            points += around
            settings.append(predict())
    predictions = [setting["capacity_per_s"] for setting in settings]
    shares += [setting["others_share"] or 0.0 for setting in settings]
    rates = [measured.rate_per_s or float("nan") for measured in servers]
    ratios = [math.sqrt(a * b) / r for (a, b), r in zip(pairwise(predictions), rates, strict=True)]
    return {
        "engine": f"{model}:{backend}",
        "limit_ms": limit_ms,
        "predicted": predictions,
        "socket": rates,
        "ratios": ratios,
        "difference": geometric_mean(ratios) - 1,
        "spread": max(ratios) / min(ratios) - 1,
        "others_share": max(shares),
        "noisy": next((text for s in settings if (text := s.get("noisy", ""))), ""),
        "settings": settings,
        "points": points,
    }


def row(figure: dict[str, Any]) -> tuple[str, ...]:
    def rates(name: str) -> str:
        return ", ".join(f"{rate:.1f}" for rate in figure[name])

    return (
        figure["engine"],
        f"{figure['limit_ms']:.2f}",
        rates("predicted"),
        rates("socket"),
        f"{figure['difference']:+.1%}",
        f"{figure['others_share']:.0%}",
        doubts_of(figure),
    )


def doubts_of(figure: dict[str, Any]) -> str:
    """Say why the figures of an engine cannot be relied on, "" if they can."""
    noisy: str = figure["noisy"]
    if not noisy and not figure["spread"] <= LIMIT:
        return f"the rounds differ by {figure['spread']:.1%}"
    return noisy or "other processes are busy" * (figure["others_share"] > QUIET)


def median_ms(folder: Path, options: dict[str, Any]) -> float:
    """Time single calls for half a second."""
    with load_engine(folder, options=options) as engine:
        inputs, times, end = random_inputs(engine), [], time.perf_counter() + 0.5
        for _ in range(3):
            engine.run(inputs)
        while (start := time.perf_counter()) < end or len(times) < 5:
            engine.run(inputs)
            times.append(time.perf_counter() - start)
    return 1e3 * median(times)


def random_inputs(engine: Engine) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        port.name: generator.integers(0, 256, [int(size or 1) for size in port.shape], np.uint8)
        for port in engine.inputs
    }


def serve(folder: str, instances: int, options: dict[str, Any]) -> None:
    """Answer requests on a free port until stdin ends."""
    with load_engine(folder, options=options, concurrency=instances) as engine:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        print(listener.getsockname()[1], flush=True)
        threading.Thread(target=accept, args=(listener, engine), daemon=True).start()
        sys.stdin.read()
        os._exit(0)


def accept(listener: socket.socket, engine: Engine) -> None:
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(connection, engine), daemon=True).start()


def answer(connection: socket.socket, engine: Engine) -> None:
    """Read the inputs, run the engine and write the outputs, again and again."""
    inputs = random_inputs(engine)
    while all(receive(connection, memoryview(array).cast("B")) for array in inputs.values()):
        outputs = b"".join(output.tobytes() for output in engine.run(inputs).values())
        connection.sendall(struct.pack("<I", len(outputs)) + outputs)


def receive(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill a buffer; False at the end of the connection."""
    while buffer:
        count = connection.recv_into(buffer)
        if not count:
            return False
        buffer = buffer[count:]
    return True


@contextmanager
def server(
    folder: Path, instances: int, options: dict[str, Any]
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Start the server; yield its port and its process."""
    command = [sys.executable, __file__, "--serve", str(folder), str(instances)]
    with subprocess.Popen(
        [*command, json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as process:
        assert process.stdout
        yield int(process.stdout.readline()), process


def socket_capacity(
    port: int,
    folder: Path,
    connections: int,
    rates: Sequence[float],
    limit_ms: float,
    seconds: float,
) -> tuple[Capacity, Any]:
    """Search for the capacity of the server."""
    with load_engine(folder) as engine:
        request = b"".join(array.tobytes() for array in random_inputs(engine).values())
    own = threading.local()

    def call() -> None:
        if not hasattr(own, "connection"):
            own.connection = socket.create_connection(("127.0.0.1", port), timeout=60)
            own.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.connection.sendall(request)
        size = bytearray(4)
        receive(own.connection, memoryview(size))
        if not receive(own.connection, memoryview(bytearray(*struct.unpack("<I", size)))):
            raise SystemExit("the server closed a connection")

    load = OpenLoop(call, connections, limit_ms)
    load.saturate(0.3)
    points, _ = explore(lambda rate: load.measure(rate, seconds), rates, limit_ms)
    load.close()
    return find_capacity(points, limit_ms), points


if __name__ == "__main__":
    main()
