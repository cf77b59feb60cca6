"""Networks that users' functions fill, built by the real TensorRT-RTX, with or without a GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_jobs import engine_options, request

from buildsys.backends.interface import BuildRequest, Definition
from buildsys.backends.tensorrt import build as building
from buildsys.backends.tensorrt import library, network
from buildsys.backends.tensorrt.build import build_or_refit
from buildsys.backends.tensorrt.library import log_of
from buildsys.backends.tensorrt.network import new_builder
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import load_arrays, save_tensors, tensor_of

trt = pytest.importorskip("tensorrt_rtx")
from buildsys.backends.tensorrt_rtx import backend as tensorrt_rtx  # noqa: E402 - after the skip

LIBRARY = library.library_of(trt)
INPUTS = {"x": {"shape": ["batch", 3, 8, 8], "dtype": "float32"}}
OUTPUTS = {"y": {"shape": ["batch", 256], "dtype": "float32"}}
KERNEL = np.arange(108, dtype=np.float32).reshape(4, 3, 3, 3)
BIAS = np.ones(4, np.float32)
CODE = """\
import numpy as np

def define(network, trt, weights, slope=0.0):
    x = network.add_input("x", trt.float32, (-1, 3, 8, 8))
    conv = network.add_convolution_nd(x, 4, (3, 3), weights["kernel"], weights["bias"])
    conv.name = "conv"
    conv.padding_nd = (1, 1)
    relu = network.add_activation(conv.get_output(0), trt.ActivationType.LEAKY_RELU)
    relu.name = "relu"
    relu.alpha = slope
    flat = network.add_shuffle(relu.get_output(0))
    flat.name = "flatten"
    flat.reshape_dims = (0, -1)
    mark(network, flat.get_output(0))

def mark(network, tensor, name="y"):
    tensor.name = name
    network.mark_output(tensor)

def assigned(network, trt):
    x = network.add_input("x", trt.float32, (-1, 3, 8, 8))
    conv = network.add_convolution_nd(x, 4, (3, 3), np.zeros((4, 3, 3, 3), np.float32))
    conv.kernel = np.full((4, 3, 3, 3), 7, np.float32)
    scale = network.add_scale(conv.get_output(0), trt.ScaleMode.UNIFORM)
    scale.power = trt.Weights(np.full(1, 3, np.float32))
    flat = network.add_shuffle(scale.get_output(0))
    flat.reshape_dims = (0, -1)
    mark(network, flat.get_output(0))

def transposed(network, trt):
    network.add_constant((2, 3), np.ones((3, 2), np.float32).T)

def without_output(network, trt):
    network.add_input("x", trt.float32, (-1, 3, 8, 8))

def refused(network, trt):
    x = network.add_input("x", trt.float32, (-1, 3, 8, 8))
    two = network.add_constant((1, 2), np.ones((1, 2), np.float32))
    mark(network, network.add_elementwise(x, two.get_output(0), trt.ElementWiseOperation.SUM)
         .get_output(0))

def of_another_version(network, trt):
    network.add_input("x", trt.int65, (1,))

def of_no_plugin(network, trt):
    trt.get_plugin_registry().get_creator("Missing", "1", "").create_plugin("a", None)

def importing(network, trt):
    import not_installed_here

def other_names(network, trt):
    x = network.add_input("image", trt.float32, (-1, 3, 8, 8))
    mark(network, network.add_identity(x).get_output(0), "z")

def other_shapes(network, trt):
    x = network.add_input("x", trt.float16, (4, 3, 8))
    mark(network, network.add_identity(x).get_output(0))

def needs_more(network, trt, width, depth): ...
"""


def requested(folder: Path, function: str = "define", **fields: Any) -> BuildRequest:
    (folder / "net.py").write_text(CODE)
    given = Definition(f"net.py:{function}", outputs=OUTPUTS)
    asked = request(Path(), folder, engine_options("tensorrt_rtx"))
    asked = replace(asked, onnx=Path(), inputs=INPUTS, project=folder)
    return replace(asked, definition=replace(given, **fields))


def weights_file(folder: Path, kernel: np.ndarray = KERNEL) -> Path:
    np.savez(folder / "net.npz", kernel=kernel, bias=BIAS)
    return folder / "net.npz"


def test_a_defined_network_is_built(tmp_path: Path) -> None:
    asked = requested(tmp_path, weights=weights_file(tmp_path))
    tensorrt_rtx.prepare(asked.options)
    facts = tensorrt_rtx.build(asked)
    assert asked.engine.read_bytes()[:4] == b"vtrt"
    assert facts["layers"] == {"activation": 1, "convolution": 1, "shuffle": 1}
    x = {"min": (1, 3, 8, 8), "opt": (2, 3, 8, 8), "max": (8, 3, 8, 8)}
    assert facts["profiles"] == [{"x": x}]
    assert facts["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": ["batch", 3, 8, 8], "format": "linear"}
    ]
    assert facts["outputs"] == [
        {"name": "y", "dtype": "float32", "shape": ["?", 256], "format": "linear"}
    ]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("missing", "net.py has no missing"),
        ("without_output", "the network has the outputs none, and the manifest y"),
        ("refused", "net.py:refused did what TensorRT-RTX refuses: "),
        ("of_another_version", "has no attribute 'int65' (net.py:43); write def define(network,"),
        ("of_no_plugin", "TensorRT returns None for a layer that it refuses and for a plugin that"),
        ("transposed", "weights are contiguous arrays (numpy.ascontiguousarray)"),
        ("importing", "No module named 'not_installed_here' (net.py:49)"),
        ("other_names", "the network has the inputs image, and the manifest x; the network has the"
                        " outputs z, and the manifest y"),
        ("other_shapes", "input x is float16, and float32 in the manifest; input x has the shape"
                         " [4, 3, 8], and [batch, 3, 8, 8] in the manifest (-1 is any size);"),
        ("needs_more", "missing 2 required positional arguments: 'width' and 'depth'; write def"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(tmp_path: Path, function: str, expected: str) -> None:
    with pytest.raises(StageError) as caught:
        tensorrt_rtx.build(requested(tmp_path, function))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_weights_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "net.npz").write_text("nothing")
    with pytest.raises(StageError, match=r"^net\.npz cannot be read as an \.npz file: "):
        tensorrt_rtx.build(requested(tmp_path, weights=tmp_path / "net.npz"))
    with pytest.raises(StageError, match=r"^other\.npz cannot be read"):
        tensorrt_rtx.build(requested(tmp_path, weights=tmp_path / "other.npz"))


def test_weights_of_the_reference_are_plain_arrays(tmp_path: Path) -> None:
    file = tmp_path / "weights.npz"
    save_tensors(file, {"a": tensor_of([1.5], "bfloat16"), "b": tensor_of(np.float32(2))})
    assert {name: (array.dtype, array.tolist()) for name, array in load_arrays(file).items()} == {
        "a": (np.float32, [1.5]), "b": (np.float32, 2.0),
    }  # fmt: skip


def defined(asked: BuildRequest) -> Any:
    with log_of(LIBRARY).collected() as messages:
        return network.define_network(LIBRARY, new_builder(LIBRARY), asked, messages)


def test_arrays_assigned_to_a_layer_stay_alive(tmp_path: Path) -> None:
    setter = vars(trt.IConvolutionLayer)["kernel"]
    parsed = defined(requested(tmp_path, "assigned", outputs={}))
    others = [np.zeros((4, 3, 3, 3), np.float32) for _ in range(20)]  # in memory just freed
    layer = parsed.network.get_layer(0)
    layer.__class__ = trt.IConvolutionLayer
    assert (layer.kernel == 7).all()
    assert len([array for array in parsed.keeper if isinstance(array, np.ndarray)]) == 1
    assert vars(trt.IConvolutionLayer)["kernel"] is setter
    assert others[0].sum() == 0


def test_a_defined_network_is_built_instead_of_refitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(building._FLAG_FIELDS, "refit")  # its builder flag needs a GPU
    asked = requested(tmp_path, weights=weights_file(tmp_path))
    facts = build_or_refit(LIBRARY, replace(asked, options={**asked.options, "refit": True}))
    assert asked.engine.is_file()
    assert "defined by hand" in facts["not_refitted"]
