"""Engines timed in a peer process: figures, failures, shutdown."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_jobs import BATCHES, random_x, resolved, save_at, stage_job, write_golden
from small_graphs import conv_bn

from buildsys.backends.interface import OperatorUse
from buildsys.backends.measurement import Pace, Samples, measure
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import load_tensors, save_case
from buildsys.stages.bench import stage as bench
from buildsys.stages.bench import timed_engine
from buildsys.stages.bench.timed_engine import LocalEngine, RemoteEngine
from buildsys.stages.engine import stage as engine
from buildsys.system.toolchains import Toolchain
from buildsys.workers.job import Job

HERE = Toolchain("here", Path(sys.executable), {})
INPUTS = {case: random_x(batch) for case, batch in BATCHES.items()}
QUICK = {"duration": 0.05, "warmup": 0.01, "min_samples": 5, "noise": None, "cold_start": 0}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("built")
    spec = resolved({"backend": "onnxruntime", "intra_op_threads": 1}, bench=QUICK)
    write_golden(folder, {case: {} for case in INPUTS}, INPUTS)
    job = stage_job(spec, "engine", folder, save_at(folder / "model.onnx", conv_bn()))
    assert engine.run(job).status == "passed"
    return stage_job(spec, "bench", folder)


def test_a_peer_computes_outputs(built: Job, stack: ExitStack, tmp_path: Path) -> None:
    peer = opened_peer(built)
    stack.callback(peer.close)
    peer.save_outputs(built.inputs["case.opt"], tmp_path / "outputs.npz")
    (outputs,) = load_tensors(tmp_path / "outputs.npz").values()
    assert outputs.shape == (BATCHES["opt"], 5)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def opened_peer(job: Job, toolchain: Toolchain = HERE, **changed: Any) -> RemoteEngine:
    options = {**job.options["engine"], **changed}
    folder = job.outputs["result"].parent
    return RemoteEngine(
        toolchain,
        options["backend"],
        job.inputs["engine"],
        options,
        (OperatorUse("trt::Nms", "plugin", None, folder),),  # without a file
        project=folder,
        folder=folder,
    )


def script(folder: Path, text: str) -> Toolchain:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return Toolchain("other", file, {})


def test_a_peer_measures_what_this_process_measures(
    built: Job, stack: ExitStack, tmp_path: Path
) -> None:
    case = tmp_path / "case.npz"
    save_case(case, random_x(64), {})
    there = opened_peer(built)
    stack.callback(there.close)
    here = LocalEngine("onnxruntime", built.inputs["engine"], built.options["engine"], ())
    stack.callback(here.close)
    contenders = {
        "here": here.bind(case, None)["engine"],
        "there": there.bind(case, None)["engine"],
    }
    ratios = []
    for _ in range(5):  # other processes can slow one of them down for a whole measurement
        blocks = measure(contenders, Pace(duration_s=0.2, warmup_s=0.05, min_samples=50))
        samples = {name: Samples.joined(taken) for name, taken in blocks.items()}
        assert samples["there"].elapsed_ns >= 2e8
        fast = {
            name: sorted(taken.wall_ns)[len(taken.wall_ns) // 10] for name, taken in samples.items()
        }
        ratios.append(fast["there"] / fast["here"])
        if 0.75 < ratios[-1] < 1.33:
            break
    else:
        pytest.fail(f"their latencies differ: {ratios}")


def test_a_stage_with_a_toolchain_times_its_engine_there(
    built: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    shouting = Toolchain("shouting", Path(sys.executable), {"PYTHONVERBOSE": "1"})  # much on stderr
    result = bench.run(replace(built, toolchain=shouting))
    assert result.status == "passed"
    assert result.figures["cases"]["opt"]["contenders"]["engine"]["count"] >= 5
    assert "buildsys.stages.bench.timed_engine" in capfd.readouterr().err


def test_a_peer_that_does_not_answer_is_one_sentence(built: Job, tmp_path: Path) -> None:
    sentence = r"toolchain other, .*/python\) exited with code 3 without a result while"
    with pytest.raises(StageError, match=sentence):
        opened_peer(built, script(tmp_path, "exit 3"))


def test_a_peer_that_hangs_is_ended(
    built: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timed_engine, "_ANSWER_LIMIT_S", 0.3)
    with pytest.raises(StageError, match='did not answer "load" for 0 s'):
        opened_peer(built, script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60"))
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_missing_interpreter_is_named(built: Job) -> None:
    nowhere = Toolchain("gone", Path("/no/such/python"), {})
    with pytest.raises(
        StageError, match=r"toolchain gone cannot be started: /no/such/python: no such file"
    ):
        opened_peer(built, nowhere)


def test_a_peer_goes_on_after_an_error_until_it_dies(
    built: Job, capfd: pytest.CaptureFixture[str]
) -> None:
    other = opened_peer(built)
    with pytest.raises(StageError, match=r"nothing\.npz"):
        other.bind(Path("/nothing.npz"), None)
    assert "nothing.npz" in capfd.readouterr().err
    contender = other.bind(built.inputs["case.opt"], None)["engine"]
    contender.block(0.01, 1)
    os.kill(other.processes[0], signal.SIGKILL)
    with pytest.raises(StageError, match=r"was killed by signal 9 .* while it was asked to"):
        for _ in range(2):
            contender.block(0.01, 1)
    other.close()


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt") is not None, reason="TensorRT is installed"
)
def test_a_peer_ends_with_its_stage_even_when_that_is_killed(built: Job, tmp_path: Path) -> None:
    stage = textwrap.dedent("""
        import json, sys, time
        from pathlib import Path
        from buildsys.system.toolchains import Toolchain
        from buildsys.stages.bench.timed_engine import RemoteEngine
        asked = json.loads(sys.argv[1])
        here = Toolchain("here", Path(sys.executable), {})
        peer = RemoteEngine(here, "onnxruntime", Path(asked["engine"]), asked["options"], (),
                          project=Path(asked["folder"]), folder=Path(asked["folder"]))
        contender = peer.bind(Path(asked["case"]), None)["engine"]
        print(peer.processes[0], flush=True)
        contender.block(600, 1)
    """)
    asked = {
        "engine": str(built.inputs["engine"]), "options": built.options["engine"],
        "folder": str(tmp_path), "case": str(built.inputs["case.opt"]),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", stage, json.dumps(asked)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    number = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(3000):  # the block would take 600 s
        if not Path(f"/proc/{number}").exists():
            return
        time.sleep(0.05)
    os.kill(number, signal.SIGKILL)
    raise AssertionError("the peer lives on")
