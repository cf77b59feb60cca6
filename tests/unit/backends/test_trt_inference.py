"""Inference of a TensorRT context: profiles, kept shapes and memory, streams."""

from typing import Any

import numpy as np
import pytest
from emulated_gpu import EmulatedBuffer, EmulatedStream, emulated

from buildsys.backends.interface import DeviceTensor
from buildsys.backends.tensorrt import inference
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor, tensor_of


def x_of(batch: int, seed: int = 0) -> Tensor:
    return tensor_of(np.random.default_rng(seed).standard_normal((batch, 3)).astype(np.float32))


def on_device(value: Tensor) -> DeviceTensor:
    buffer = EmulatedBuffer(value.array.nbytes)
    buffer.upload(value.array)
    return DeviceTensor(buffer.address, value.shape, value.dtype, buffer)


def allocate(name: str, dtype: str, shape: tuple[int, ...]) -> DeviceTensor:
    array = np.full(shape, np.nan, dtype)
    return DeviceTensor(array.ctypes.data, shape, dtype, array)


def test_memory_and_shapes_are_kept_for_equal_shapes() -> None:
    session, engine = emulated()
    (context,) = engine.contexts
    for seed in range(3):
        x = x_of(2, seed)
        np.testing.assert_array_equal(session.run({"x": x})["y"].array, 2 * x.array)
    assert context.calls.count("set_input_shape") == 1
    assert session.gpu.allocations == 2
    session.run({"x": x_of(5)})
    assert context.calls.count("set_input_shape") == 2
    assert len(session.gpu.allocated) == 2


def test_outputs_do_not_share_memory_with_later_calls() -> None:
    session, _ = emulated()
    x = x_of(2)
    first = session.run({"x": x})["y"].array
    session.run({"x": x_of(2, 1)})
    np.testing.assert_array_equal(first, 2 * x.array)


def test_a_strided_input_is_uploaded_in_order() -> None:
    session, _ = emulated()
    array = x_of(4).array[::2]
    np.testing.assert_array_equal(session.run({"x": tensor_of(array)})["y"].array, 2 * array)


def test_the_first_fitting_profile_is_chosen_unless_one_is_given() -> None:
    session, engine = emulated((1, 2), (2, 8))
    for batch, wanted, chosen in ((2, None, 0), (5, None, 1), (1, None, 0), (2, 1, 1)):
        session.run({"x": x_of(batch)}, wanted)
        assert engine.contexts[0].active_optimization_profile == chosen
    with pytest.raises(StageError) as outside:
        session.run({"x": x_of(9)})
    assert str(outside.value) == (
        "no optimization profile of the engine holds the shapes {'x': (9, 3)};"
        " profile 0: x [1, 3] to [2, 3]; profile 1: x [2, 3] to [8, 3]"
    )
    for profile in (0, 2):
        with pytest.raises(StageError, match=f"no optimization profile {profile} of the engine"):
            session.run({"x": x_of(5)}, profile)
    np.testing.assert_array_equal(session.run({"x": x_of(1)})["y"].array, 2 * x_of(1).array)


def test_arrays_on_the_device_are_used_in_place() -> None:
    session, engine = emulated()
    x = x_of(2)
    given = on_device(x)
    for _ in range(2):
        found = session.enqueue({"x": given}, allocate)["y"]
        np.testing.assert_array_equal(found.array, 2 * x.array)
        assert engine.contexts[0].addresses["y"] == found.address
    assert engine.contexts[0].addresses["x"] == given.address
    assert session.gpu.allocations == 0
    assert engine.contexts[0].calls.count("set_input_shape") == 1
    # and from the host, which needs memory on the device; it stays for the next call
    np.testing.assert_array_equal(session.enqueue({"x": x}, allocate)["y"].array, 2 * x.array)
    np.testing.assert_array_equal(session.run({"x": x})["y"].array, 2 * x.array)
    np.testing.assert_array_equal(session.enqueue({"x": given}, allocate)["y"].array, 2 * x.array)
    assert len(session.gpu.allocated) == 2


def test_outputs_of_unknown_shape_get_memory_of_their_size() -> None:
    session, _ = emulated(outputs=("y", "positive"))
    for seed in range(3):
        x = x_of(4, seed)
        for found in (session.run({"x": x}), session.enqueue({"x": on_device(x)}, allocate)):
            assert list(found) == ["y", "positive"]
            np.testing.assert_array_equal(found["positive"].array, x.array[x.array > 0])


def test_a_stream_of_the_caller_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def wrapped(handle: int) -> EmulatedStream:
        made.append(EmulatedStream(handle))
        return made[-1]

    monkeypatch.setattr(inference, "Stream", wrapped)
    session, engine = emulated()
    given = {"x": on_device(x_of(2))}
    session.enqueue(given, allocate, 5)
    session.enqueue(given, allocate, 5)
    assert engine.contexts[0].calls[-1] == "execute 5"
    assert [stream.synchronized + stream.waits for stream in made] == [0]
    session.enqueue(given, allocate, 6)  # while the first stream may still run
    assert made[-1].waits == 1
    session.run({"x": x_of(3)})
    assert session.gpu.main_stream.waits == 1
    assert session._finished is not None
    assert session._finished.waited == 1, "shapes changed while a stream may still run"


def test_a_missing_input_is_named() -> None:
    session, _ = emulated()
    for call in (session.run, session.bind, lambda inputs: session.enqueue(inputs, allocate)):
        with pytest.raises(StageError, match="the engine's input x is not given"):
            call({})


def test_repeated_calls_on_the_same_memory_become_graphs() -> None:
    session, engine = emulated()
    session.cuda_graphs = True
    (context,) = engine.contexts
    for seed in range(10):
        x = x_of(2, seed)
        np.testing.assert_array_equal(session.run({"x": x})["y"].array, 2 * x.array)
    graph = session.graph
    assert graph is not None
    assert graph.launches == 7
    assert len(context.calls) == 1 + 4  # shapes, executions
    x = x_of(5)  # other memory: the graph is of no use any more
    np.testing.assert_array_equal(session.run({"x": x})["y"].array, 2 * x.array)
    assert graph.released
    assert session.graph is None


def test_what_cannot_be_captured_runs_without_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = emulated()
    session.cuda_graphs = True

    def refuse(work: object) -> None:
        raise StageError("a loop cannot be captured")

    monkeypatch.setattr(session.gpu, "capture", refuse)
    for seed in range(10):
        x = x_of(2, seed)
        np.testing.assert_array_equal(session.run({"x": x})["y"].array, 2 * x.array)
    assert not session.cuda_graphs
    other, _ = emulated(outputs=("y", "positive"))
    other.cuda_graphs = True
    for seed in range(10):
        x = x_of(2, seed)
        found = other.run({"x": x})["positive"].array
        np.testing.assert_array_equal(found, x.array[x.array > 0])
    assert other.graph is None
