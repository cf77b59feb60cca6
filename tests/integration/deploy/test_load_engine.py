"""Engines loaded with the public API, on ONNX Runtime."""

import os
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from built_engines import build, copied, edit
from small_graphs import make_model, parse

from buildsys import EngineError, load_engine
from buildsys.deploy.engine import Engine


@pytest.fixture(scope="module")
def engine(ort_built: Path) -> Iterator[Engine]:
    with load_engine(ort_built) as engine:
        yield engine


def x_of(batch: int = 2, seed: int = 0) -> np.ndarray:
    shape = (batch, 3, 8, 8)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_outputs_are_those_of_the_bare_runtime(ort_built: Path, engine: Engine) -> None:
    bare = ort.InferenceSession(ort_built, providers=["CPUExecutionProvider"])
    for batch in (1, 2, 5):
        x = x_of(batch)
        found = engine(x=x)
        assert list(found) == ["y"]
        np.testing.assert_array_equal(found["y"], bare.run(None, {"x": x})[0])
    np.testing.assert_array_equal(engine({"x": x})["y"], found["y"])


def test_an_engine_describes_itself(ort_built: Path, engine: Engine) -> None:
    (x,), (y,) = engine.inputs, engine.outputs
    assert (x.name, x.dtype, x.shape) == ("x", "float32", ("batch", 3, 8, 8))
    assert (y.name, y.shape) == ("y", ("batch", 5))
    assert (engine.name, engine.backend, engine.file) == ("m:e", "onnxruntime", ort_built)
    assert engine.record["model"] == "m"
    assert engine.profiles == []
    assert repr(engine).startswith("<Engine m:e, onnxruntime, x: float32[")
    with load_engine(ort_built.parent) as other:  # the folder will do
        assert other.file == ort_built


class Exported:
    """An array of a library that numpy does not know."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__()


def test_arrays_with_dlpack_are_taken(engine: Engine) -> None:
    found = engine(x=Exported(x_of()))  # type: ignore[type-var]
    np.testing.assert_array_equal(found["y"], engine(x=x_of())["y"])


def test_torch_tensors_give_torch_tensors(engine: Engine) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(x_of())
    found = engine(x=x)["y"]
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), engine(x=x.numpy())["y"])
    weights = torch.nn.Parameter(x)
    with pytest.raises(EngineError, match=r"x of m:e cannot be read: .* use tensor\.detach"):
        engine(x=weights)
    with pytest.raises(EngineError, match=r"x of m:e is bfloat16, .*; convert it to float32"):
        engine(x=x.bfloat16())
    with pytest.raises(EngineError, match="x of m:e cannot be read: Cannot pack tensors"):
        engine(x=x.to("meta"))


WRONG = {
    "no input": ({}, "m:e needs the input x; pass it too"),
    "another name": ({"X": x_of()}, "m:e has no input 'X', it has x; did you mean x?"),
    "one too many": ({"x": x_of(), "mask": x_of()}, "m:e has no input 'mask', it has x"),
    "float64": (
        {"x": x_of().astype(np.float64)},
        "the input x of m:e is float64, and the engine takes float32; convert it to float32",
    ),
    "a list": (
        {"x": [1.0, 2.0]},
        "the input x of m:e cannot be read: it is a value of type list; pass a contiguous array",
    ),
    "rank": (
        {"x": x_of()[0]},
        "the input x of m:e has the shape [3, 8, 8], and the engine takes [batch from 1 to",
    ),
    "a fixed size": ({"x": x_of()[:, :2]}, "the input x of m:e has the shape [2, 2, 8, 8]"),
    "a GPU": (
        {"x": Exported(x_of(), (2, 1))},
        "the input x of m:e is in GPU memory, and this engine takes arrays in host memory",
    ),
}


@pytest.mark.parametrize("inputs_and_sentence", WRONG.values(), ids=WRONG.keys())
def test_wrong_inputs_are_refused(engine: Engine, inputs_and_sentence: tuple[Any, str]) -> None:
    inputs, sentence = inputs_and_sentence
    with pytest.raises(EngineError) as refused:
        engine(inputs)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)
    engine(x=x_of())  # still works


def test_calls_of_another_kind_are_refused(engine: Engine) -> None:
    np.testing.assert_array_equal(engine(x_of())["y"], engine(x=x_of())["y"])
    for inputs in (x_of(), [x_of()], "x"):
        with pytest.raises(EngineError, match=r"of type \w+; pass them by name, engine\(x=array"):
            engine.run(inputs)  # type: ignore[arg-type]
    for inputs in ([x_of()], "x"):
        with pytest.raises(EngineError, match="x of m:e cannot be read: it is a value of type"):
            engine(inputs)
    with pytest.raises(EngineError, match=r"of m:e are 2 arguments; pass them by name, engine\(x="):
        engine({"x": x_of()}, x=x_of())
    with pytest.raises(EngineError, match="m:e has no optimization profiles; leave out `profile`"):
        engine.run({"x": x_of()}, profile=0)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_inputs_of_different_batches_are_refused(tmp_path: Path, backend: str) -> None:
    pytest.importorskip(backend)
    model = parse("(float[batch,4] a, float[batch,4] b) => (float[batch,4] y) { y = Add(a, b) }")
    inputs = {name: {"shape": ["batch", 4]} for name in ("a", "b")}
    with load_engine(build(tmp_path, backend, model, inputs=inputs)) as engine:
        row = np.ones((1, 4), np.float32)
        assert engine(a=row, b=row)["y"].tolist() == [[2.0] * 4]
        with pytest.raises(EngineError, match="of m:e differ in batch: a has 2, b has 3; pass"):
            engine(a=row.repeat(2, 0), b=row.repeat(3, 0))
        with pytest.raises(
            EngineError, match=r"b of m:e has the .*takes \[batch from 1 to \d+, 4\]"
        ):
            engine(a=row, b=row.repeat(99, 0))
        with pytest.raises(EngineError, match=r"ndarray; pass them by name, engine\(a=array, b=a"):
            engine(row)


def test_an_engine_is_closed_with_its_last_reference(ort_built: Path) -> None:
    engine = load_engine(ort_built)
    pool = engine._pool
    del engine
    with pytest.raises(EngineError, match="m:e is closed"):
        pool.acquire()


def test_threads_share_an_engine(engine: Engine) -> None:
    inputs = [x_of(1 + number % 3, number) for number in range(24)]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(lambda x: engine(x=x)["y"], inputs))
    for x, found in zip(inputs, together, strict=True):
        np.testing.assert_array_equal(found, engine(x=x)["y"])


def test_a_closed_engine_refuses_calls(ort_built: Path) -> None:
    with load_engine(ort_built) as engine:
        pass
    engine.close()
    with pytest.raises(EngineError, match="m:e is closed; load it again"):
        engine(x=x_of())


def test_a_fork_must_load_its_own_engine(engine: Engine) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            engine(x=x_of())
        except EngineError as error:
            os.write(write, str(error).encode())
        finally:
            engine.close()
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        sentence = pipe.read()
    os.waitpid(child, 0)
    assert sentence == (
        f"m:e was loaded in process {os.getpid()}, and this is a fork of it;"
        " load the engine in the process that runs it"
    )
    engine(x=x_of())


def test_an_engine_that_cannot_run_is_refused(ort_built: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot run here: there is no engine file"):
        load_engine(tmp_path)
    file = copied(ort_built, tmp_path)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(EngineError, match=r"cannot run here: engine\.onnx is not the file"):
        load_engine(file)
    built_with = {"onnxruntime": "99.1", "instructions": []}
    edit(file, lambda record: record["built_with"].update(built_with))
    with pytest.raises(EngineError, match=r"recorded one is .* \(and 1 more, which can_run lists"):
        load_engine(file)
    file.with_name("engine.json").unlink()
    with pytest.raises(EngineError, match=r"engine\.json is missing"):
        load_engine(file, digest=False)


def test_options_for_running_are_checked(ort_built: Path) -> None:
    with load_engine(ort_built, options={"intra_op_threads": 1}, concurrency=1) as engine:
        assert engine(x=x_of())["y"].shape == (2, 5)
    for options, sentence in (
        (
            {"intra_op_thread": 1},
            "has no option 'intra_op_thread' for running; pass one of ",
        ),
        ({"intra_op_threads": "4"}, "the option intra_op_threads is '4'; pass a value such as 0"),
        ({"spinning": 1}, "the option spinning is 1; pass a value such as True"),
        ({"session_config": {"a": 1}}, "session_config is {'a': 1}; pass a value such as"),
        (["spinning"], r"options is \['spinning'\]; pass a mapping of options by name"),
        ({"provider": "cuda"}, "onnxruntime has no option 'provider' for running"),
    ):
        with pytest.raises(EngineError, match=sentence):
            load_engine(ort_built, options=options)  # type: ignore[arg-type]
    for concurrency in (0, "2"):
        with pytest.raises(EngineError, match=f"concurrency is {concurrency!r}; pass a number"):
            load_engine(ort_built, concurrency=concurrency)  # type: ignore[arg-type]


def test_close_waits_for_running_calls(ort_built: Path) -> None:
    engine = load_engine(ort_built, concurrency=1)
    session = engine._pool.acquire()  # a call that runs
    closing = threading.Thread(target=engine.close)
    waiting = ThreadPoolExecutor(1)
    refused = waiting.submit(engine, x=x_of())
    closing.start()
    with pytest.raises(EngineError, match="is closed"):
        refused.result(60)
    assert closing.is_alive()
    engine._pool.release(session)
    closing.join(60)
    assert not closing.is_alive()
    waiting.shutdown()


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "deploying.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    example = next(one for one in examples if "resnet18" in one)
    ports = (onnx.TensorProto.FLOAT, ["batch", 3, 224, 224])
    node = onnx.helper.make_node("Relu", ["input0"], ["output0"])
    folder = tmp_path / "build" / "resnet18" / "engine"
    ort_built = build(
        tmp_path / "built", "onnxruntime", make_model([node], {"input0": ports}, {"output0": ports})
    )
    folder.mkdir(parents=True)
    ort_built.parent.rename(folder / "ort-cpu")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert capsys.readouterr().out == "(1, 3, 224, 224)\n"


@pytest.mark.parametrize(
    "settings",
    [
        {"intra_op_threads": "8"},
        {"inter_op_threads": 10**30},
        {"session_config": [["a", "b"]]},
        {"execution_mode": "\x1b[2J"},
    ],
    ids=str,
)
def test_a_record_with_wrong_settings_is_one_sentence(
    ort_built: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    engine = copied(ort_built, tmp_path)
    edit(engine, lambda record: record["settings"].update(settings))
    with pytest.raises(EngineError) as caught:
        load_engine(engine)
    assert "m:e cannot be loaded: engine.json has " in str(caught.value)
    assert str(caught.value).endswith("copy the engine's whole folder again, or build it")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("file", ["../x.py", "/tmp/x.py"])
def test_a_plugin_is_never_taken_from_another_folder(
    ort_built: Path, tmp_path: Path, file: str
) -> None:
    engine = copied(ort_built, tmp_path)

    def change(record: dict[str, Any]) -> None:
        record["operators"] = {"a::B": "plugin p.py"}
        record["plugins"] = [{"operator": "a::B", "file": file}]
        record["files"]["x.py"] = {}

    edit(engine, change)
    engine.with_name("x.py").touch()
    with pytest.raises(EngineError, match=f"engine.json refers to '{file}' for a::B"):
        load_engine(engine)


def test_sizes_that_nothing_verified_are_refused(ort_built: Path, tmp_path: Path) -> None:
    engine_file = copied(ort_built, tmp_path)
    edit(engine_file, lambda figures: figures.update(ranges={"x": [[1, 4], 3, 8, 8]}))
    with load_engine(engine_file) as engine:
        assert engine(x=x_of(4))["y"].shape == (4, 5)
        with pytest.raises(EngineError, match=r"\[5, 3, 8, 8\].*\[batch from 1 to 4, 3"):
            engine(x=x_of(5))
    edit(engine_file, lambda figures: figures.update(ranges={"x": [[2, 6, "batch", 2], 3, 8, 8]}))
    with load_engine(engine_file) as engine:
        assert engine(x=x_of(4))["y"].shape == (4, 5)
        with pytest.raises(EngineError, match=r"\[batch from 2 to 6 in steps of 2, 3"):
            engine(x=x_of(3))
    edit(engine_file, lambda figures: figures.update(ranges={"x": [["a"], 3, 8, 8]}))
    with pytest.raises(EngineError, match=r"engine\.json has a wrong value"):
        load_engine(engine_file)
