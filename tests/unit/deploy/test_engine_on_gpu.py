"""Engines on a GPU that is emulated in host memory: arrays, streams, concurrent calls."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedBuffer, EmulatedDevice, EmulatedSession, EmulatedStream, emulated

from buildsys.backends.tensorrt import inference
from buildsys.deploy import arrays
from buildsys.deploy.arrays import DeviceArray
from buildsys.deploy.engine import Engine
from buildsys.errors import EngineError, StageError
from buildsys.system.backend_registry import Record


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> EmulatedDevice:
    device = EmulatedDevice()
    monkeypatch.setattr("buildsys.backends.cuda_device.Buffer", EmulatedBuffer)
    monkeypatch.setattr(arrays, "_shared_gpu", lambda: device)
    monkeypatch.setattr(inference, "Stream", EmulatedStream)
    return device


def engine_of(session: Any, concurrency: int | None = None) -> tuple[Engine, list[Any]]:
    """Return an engine and the list of its closed sessions."""
    record = Record("tensorrt", {})
    return Engine("m:trt", Path("e"), record, (), session, concurrency), session.closed


def x_of(batch: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((batch, 3)).astype(np.float32)


class Interface:
    """An array with the CUDA array interface alone."""

    def __init__(self, array: DeviceArray, **changes: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}


class Shared(Interface):
    """An array with DLPack, which remembers the streams that it was requested for."""

    def __init__(self, array: DeviceArray, index: int = 0) -> None:
        super().__init__(array)
        self.index = index
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.index

    def __dlpack__(self, *, stream: int) -> Any:
        self.streams.append(stream)


class OnlyDlpack(Shared):
    """An array without the CUDA array interface."""

    def __init__(self, array: DeviceArray) -> None:
        super().__init__(array)
        del self.__cuda_array_interface__


def test_host_arrays_give_host_arrays_and_device_arrays_give_device_arrays() -> None:
    engine, _ = engine_of(emulated()[0])
    x = x_of(2)
    np.testing.assert_array_equal(engine(x=x)["y"], 2 * x)
    on_device = DeviceArray.from_host(x)
    for given in (on_device, Interface(on_device), Shared(on_device)):
        found: Any = engine.run({"x": given})["y"]
        assert isinstance(found, DeviceArray)
        np.testing.assert_array_equal(found.numpy(), 2 * x)
    # outputs are inputs
    np.testing.assert_array_equal(engine(x=engine(x=found)["y"])["y"].numpy(), 8 * x)


def test_outputs_can_have_memory_of_the_caller() -> None:
    engine, _ = engine_of(emulated()[0])
    x = x_of(2)
    out = {"y": DeviceArray("float32", (2, 3))}
    found = engine.run({"x": DeviceArray.from_host(x)}, out=out)
    assert found["y"] is out["y"]
    np.testing.assert_array_equal(out["y"].numpy(), 2 * x)


def test_a_bound_call_reads_and_writes_the_same_arrays() -> None:
    engine, closed = engine_of(emulated()[0])
    x, y = DeviceArray.from_host(x_of(2)), DeviceArray("float32", (2, 3))
    call = engine.bind({"x": x}, out={"y": y})
    for seed in range(1, 4):
        x._buffer.upload(x_of(2, seed))
        assert call()["y"] is y
        np.testing.assert_array_equal(y.numpy(), 2 * x_of(2, seed))
        other = x_of(5)
        np.testing.assert_array_equal(engine(x=other)["y"], 2 * other)
    bound = engine.bind({"x": x})
    assert bound()["y"] is bound()["y"] is not y
    with pytest.raises(EngineError, match="not all inputs of m:trt are in GPU memory; call the"):
        engine.bind({"x": x_of(2)})
    with pytest.raises(EngineError, match="m:trt has no input 'z', it has x"):
        engine.bind({"z": x})
    engine.close()
    with pytest.raises(EngineError, match="m:trt is closed"):
        call()
    assert len(closed) == 1


def test_a_producer_learns_the_stream_of_the_engine() -> None:
    engine, _ = engine_of(emulated()[0])
    given = Shared(DeviceArray.from_host(x_of(2)))
    engine(x=given)
    engine.run({"x": given}, stream=5)
    engine.run({"x": given}, stream=SimpleNamespace(cuda_stream=6))
    engine.run({"x": given}, stream=SimpleNamespace(ptr=0))
    assert given.streams == [77, 5, 6, 1]


def test_memory_of_an_array_lives_as_long_as_its_last_user() -> None:
    array = DeviceArray.from_host(x_of(2))
    buffer: Any = array._buffer
    interface = Interface(array)
    del array
    assert not buffer.released
    assert interface.array.shape == (2, 3)
    del interface
    assert buffer.released


def test_device_arrays_that_do_not_fit_are_refused() -> None:
    engine, _ = engine_of(emulated()[0])
    good = DeviceArray.from_host(x_of(2))
    for given, options, sentence in (
        (
            DeviceArray("float64", (2, 3)),
            {},
            "x of m:trt is float64, and the engine takes float32; convert it on the GPU",
        ),
        (
            DeviceArray("float32", (2, 4)),
            {},
            "x of m:trt has the shape [2, 4], and the engine takes [?, 3]",
        ),
        (
            Interface(good, strides=(4, 8)),
            {},
            "x of m:trt is not contiguous in GPU memory; make it contiguous",
        ),
        (OnlyDlpack(good), {}, "x of m:trt is an array of test_engine_on_gpu without the CUDA arr"),
        (Shared(good, 1), {}, "x of m:trt is on GPU 1, and the engine on GPU 0; copy it there"),
        (DeviceArray("float32", (9, 3)), {}, "no optimization profile of the engine holds"),
        (good, {"stream": "main"}, "'main' is not a CUDA stream; pass a stream of torch or cupy"),
        (x_of(2), {"stream": 5}, "no input of m:trt is in GPU memory, so it cannot use `stream`"),
        (x_of(2), {"out": {}}, "no input of m:trt is in GPU memory, so it cannot use `out`"),
        (good, {"out": {}}, "out has nothing, and m:trt y; give an array for each output"),
        (good, {"out": {"y": x_of(2)}}, "out has an array in host memory for y; pass arrays in"),
        (
            good,
            {"out": {"y": DeviceArray("float32", (3, 3))}},
            "out has an array of float32[3, 3] for y, which is float32[2, 3]",
        ),
    ):
        with pytest.raises(EngineError) as refused:
            engine.run({"x": given}, **options)
        assert sentence in str(refused.value)
    np.testing.assert_array_equal(engine(x=good)["y"].numpy(), 2 * good.numpy())


class Gate:
    """A session that stays in ``run`` until it is opened."""

    def __init__(self, session: EmulatedSession, log: list[Gate]) -> None:
        self.inputs, self.outputs = session.inputs, session.outputs
        self.profiles = session.profiles
        self.session, self.log = session, log
        self.opened = threading.Event()
        self.closed = session.closed
        self.can_be_duplicated = True

    def run(self, inputs: Any, profile: int | None) -> Any:
        self.log.append(self)
        assert self.opened.wait(60)
        return self.session.run(inputs, profile)

    def close(self) -> None:
        self.closed.append(self)

    def duplicate(self) -> Gate:
        if not self.can_be_duplicated:
            raise StageError("no memory for another context")
        return Gate(self.session.duplicate(), self.log)


def running(log: list[Gate], count: int) -> list[Gate]:
    """Wait until so many calls run."""
    while len(log) < count:
        threading.Event().wait(0.001)
    return list(log)


@pytest.mark.parametrize(("concurrency", "sessions"), [(None, 3), (2, 2), (1, 1)])
def test_calls_at_the_same_time_have_their_own_sessions(
    concurrency: int | None, sessions: int
) -> None:
    log: list[Gate] = []
    engine, closed = engine_of(Gate(emulated()[0], log), concurrency)
    with ThreadPoolExecutor(3) as threads:
        calls = [threads.submit(engine, x=x_of(2, seed)) for seed in range(3)]
        first = running(log, sessions)
        assert len({id(gate) for gate in first}) == sessions
        for gate in first:
            gate.opened.set()
        for seed, call in enumerate(calls):
            np.testing.assert_array_equal(call.result(60)["y"], 2 * x_of(2, seed))
    assert len({id(gate) for gate in log}) == sessions
    engine.close()
    assert len(closed) == sessions
    assert closed[-1] is engine._pool._first, "duplicates go before their original"


def test_without_memory_for_another_session_calls_wait() -> None:
    log: list[Gate] = []
    gate = Gate(emulated()[0], log)
    gate.can_be_duplicated = False
    engine, _ = engine_of(gate)
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(engine, x=x_of(2)) for _ in range(2)]
        running(log, 1)
        gate.opened.set()
        assert [list(call.result(60)) for call in calls] == [["y"], ["y"]]
    assert log == [gate, gate]
