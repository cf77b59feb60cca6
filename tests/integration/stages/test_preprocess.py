"""Preprocessing inside of engines, compared with torchvision's transforms from files on."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image
from stage_jobs import manifest, stage_job

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import CheckFailed, StageError
from buildsys.onnx_graphs.tensors import Array, load_case, load_cases, tensor_of
from buildsys.stages.preprocess import image_nodes
from buildsys.stages.preprocess.image_nodes import prepend
from buildsys.stages.preprocess.stage import run

IMAGE: dict[str, Any] = {
    "shape": ["batch", 3, 24, 28], "dtype": "float32", "size": ["height", "width"], "resize": 32,
    "interpolation": "bilinear", "color": "rgb", "layout": "nchw", "divide": 255.0,
    "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
}  # fmt: skip
# shrunk, enlarged, kept; portrait, landscape, extreme; with rounded sides and crops, and ties
SIZES = [(333, 257), (40, 60), (20, 17), (32, 32), (31, 300), (64, 48), (171, 128), (53, 80)]
NETWORK = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten()
        self.layers = torch.nn.Sequential(*layers, torch.nn.LazyLinear(5))
        self.layers(torch.zeros(1, 3, 24, 28))

    def forward(self, x):
        return self.layers(x)
"""
PREPROCESS = {"inside": True, **{n: IMAGE[n] for n in ("size", "resize", "mean", "std")}}


def noise(*shape: int) -> Array:
    """Noise shows every pixel that is read from a wrong place."""
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)


def nodes_alone(**fields: Any) -> onnx.ModelProto:
    """Return a graph that returns its input, with the nodes in front, in the oldest opset."""
    image = {**IMAGE, **fields}
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(image["dtype"]))
    x, y = (onnx.helper.make_tensor_value_info(n, kind, image["shape"]) for n in "xy")
    identity = onnx.helper.make_node("Identity", ["x"], ["y"])
    opset = onnx.helper.make_opsetid("", 13)
    graph = onnx.helper.make_graph([identity], "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    prepend(model, {"x": image})
    onnx.checker.check_model(model)
    return model


def transforms(**fields: Any) -> Any:
    """Return torchvision's transforms, as a user writes them."""
    from torchvision import transforms as t

    image = {**IMAGE, **fields}
    mode = t.InterpolationMode(image["interpolation"])
    steps = [t.Resize(image["resize"], mode), t.CenterCrop((24, 28))] if image["resize"] else []
    return t.Compose([*steps, t.ToTensor(), t.Normalize(image["mean"], image["std"])])


def steps_between(actual: Array, expected: Array, image: Mapping[str, Any] = IMAGE) -> Array:
    """Count the steps of pixel values between two normalized images."""
    return abs(actual - expected) * np.reshape(image["std"], (-1, 1, 1)) * 255


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_files_of_all_sizes_are_prepared_as_by_torchvision(
    tmp_path: Path, interpolation: str
) -> None:
    graph = OrtGraph(nodes_alone(interpolation=interpolation).SerializeToString())
    prepare, different = transforms(interpolation=interpolation), 0
    for number, size in enumerate(SIZES):
        file = tmp_path / f"{number}.{'png' if number % 2 else 'jpg'}"
        Image.fromarray(noise(*size, 3)).save(file)
        with Image.open(file) as image:
            expected = prepare(image).numpy()
            pixels = np.asarray(image)
        steps = steps_between(graph.run({"x": tensor_of(pixels[None])})["y"].values()[0], expected)
        assert steps.max() < (0.01 if interpolation == "bilinear" else 1.01)
        different += int((steps > 0.01).sum())
    assert different <= 8  # of 16,128: a filter's last bit


def test_tall_images_differ_by_the_order_of_passes_only() -> None:
    """Pillow (13) resizes rows first if an image is more than twice as tall as wide."""
    graph = OrtGraph(nodes_alone().SerializeToString())
    pixels = noise(130, 50, 3)
    expected = transforms()(Image.fromarray(pixels)).numpy()
    steps = steps_between(graph.run({"x": tensor_of(pixels[None])})["y"].values()[0], expected)
    assert steps.max() < 1.01
    assert (steps > 0.01).mean() < 0.4


def test_openvino_computes_the_same_pixels(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    onnx.save(nodes_alone(), tmp_path / "nodes.onnx")
    compiled = openvino.Core().compile_model(tmp_path / "nodes.onnx", "CPU")
    for size in SIZES:
        pixels = noise(*size, 3)
        expected = transforms()(Image.fromarray(pixels)).numpy()
        assert steps_between(compiled(pixels[None])["y"][0], expected).max() < 0.01


def test_images_without_antialiasing_are_far_from_torchvision() -> None:
    """The comparison sees a resize that ignores the pixels between."""
    from torchvision.transforms.v2 import functional

    pixels = noise(333, 257, 3)
    expected = transforms()(Image.fromarray(pixels)).numpy()
    channels = functional.to_image(pixels)
    resized = functional.resize(channels, [32], antialias=False)
    values = functional.center_crop(resized, [24, 28]).numpy() / 255
    other = (values - np.reshape(IMAGE["mean"], (3, 1, 1))) / np.reshape(IMAGE["std"], (3, 1, 1))
    assert steps_between(other, expected).max() > 50
    actual = OrtGraph(nodes_alone().SerializeToString()).run({"x": tensor_of(pixels[None])})["y"]
    assert steps_between(actual.values()[0], expected).max() < 0.01


def test_layouts_colors_types_and_shapes() -> None:
    pixels = noise(2, 40, 60, 3)
    expected = np.stack([transforms()(Image.fromarray(image)).numpy() for image in pixels])

    def computed(batch: Array = pixels, **fields: Any) -> Array:
        graph = OrtGraph(nodes_alone(**fields).SerializeToString())
        return graph.run({"x": tensor_of(batch)})["y"].values()

    assert steps_between(computed(), expected).max() < 0.01  # a batch
    last = computed(layout="nhwc", shape=["batch", 24, 28, 3])
    assert np.array_equal(last.transpose(0, 3, 1, 2), computed())
    plain = {"mean": [0.0], "std": [1.0]}
    assert np.array_equal(computed(color="bgr", **plain), computed(**plain)[:, ::-1])
    half = computed(dtype="float16")
    assert half.dtype == np.float16
    assert np.array_equal(half, computed().astype(np.float16))
    gray = computed(pixels[..., :1], color="gray", shape=["batch", 1, 24, 28], **plain)
    assert np.array_equal(gray, computed(**plain)[:, :1])
    crop = pixels[:, :24, :28]
    unchanged = computed(crop, resize=None, size=None, **plain)
    assert np.allclose(unchanged, crop.transpose(0, 3, 1, 2) / 255, atol=1e-6)
    stretched = computed(resize=None, **plain)[1].transpose(1, 2, 0) * 255
    scaled = np.asarray(Image.fromarray(pixels[1]).resize((28, 24), Image.Resampling.BILINEAR))
    assert np.allclose(stretched, scaled, atol=1e-3)


def golden_job(folder: Path, **steps: Any) -> Any:
    (folder / "net.py").write_text(NETWORK)
    resolved = manifest(
        source={"python": "net.py:Net"},
        inputs={
            "x": {"shape": ["batch", 3, 24, 28], "preprocess": {**PREPROCESS, **steps}},
        },
        dims={
            "batch": {"min": 1, "opt": 2, "max": 3},
            "height": {"min": 20, "opt": 40, "max": 90},
            "width": {"min": 20, "opt": 50, "max": 90},
        },
        engines=[{"backend": "onnxruntime", "name": "e", "precision": "fp16"}],
    )
    return stage_job("preprocess", resolved, folder / "build", folder)


def test_golden_outputs_are_those_of_prepared_images(tmp_path: Path) -> None:
    import sys

    job = golden_job(tmp_path)
    result = run(job)
    assert result.status == "passed"
    assert result.figures["differing"] == 0
    assert len(result.figures["sizes"]) > 12
    sys.path.insert(0, str(tmp_path))
    import net
    import torch

    sys.path.remove(str(tmp_path))
    cases = {name: load_case(job.outputs[f"case.{name}"]) for name in job.options["cases"]}
    samples = load_cases(job.outputs["samples"])
    assert sum(len(case.inputs["x"].array) for case in samples) >= 32
    for case in (*cases.values(), samples[0]):
        images = case.inputs["x"].array
        assert images.dtype == np.uint8
        batch = torch.stack([transforms()(Image.fromarray(image)) for image in images])
        with torch.inference_mode():
            expected = net.Net()(batch).numpy()
        (output,) = case.outputs.values()
        assert np.allclose(output.array, expected, atol=1e-5)
    case = cases["max"]
    assert case.inputs["x"].shape == (3, 90, 90, 3)

    # a resize without antialiasing is far beyond the limits of verify
    from torchvision.transforms.v2 import functional

    pixels = torch.from_numpy(case.inputs["x"].array).permute(0, 3, 1, 2)
    other = functional.center_crop(functional.resize(pixels, [32], antialias=False), [24, 28])
    other = functional.normalize(other / 255, IMAGE["mean"], IMAGE["std"])
    (golden,) = (tensor.array for tensor in case.outputs.values())
    with torch.inference_mode():
        wrong = net.Net()(other).numpy()
    assert abs(wrong - golden).max() / abs(golden).max() > 0.05


def test_golden_images_are_those_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(40):
        Image.new("RGB", (30, 50), (number, 0, 0)).save(tmp_path / f"data/{number:02}.png")
    job = golden_job(tmp_path)
    data = {**IMAGE, "resize": None, "images": "data"}
    job = replace(job, options={**job.options, "data": {"x": data}})
    run(job)
    images = load_case(job.outputs["case.opt"]).inputs["x"].array
    assert images[:, 0, 0, 0].tolist() == [0, 1]


@pytest.mark.parametrize("fault", ["crop", "filter"])
def test_faulty_nodes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    nodes = image_nodes._ImageNodes
    if fault == "crop":  # one pixel off where the rest is odd
        right = nodes._centered
        monkeypatch.setattr(nodes, "_centered", lambda s, n, c: s._add("Add", right(s, n, c), 1))
    else:
        monkeypatch.setattr(image_nodes, "_HALF_BITS", 4.0)  # coarse weights
    with pytest.raises(CheckFailed, match=r"the preprocessing of x differs from torchvision's at"):
        run(golden_job(tmp_path))


def test_a_graph_in_an_old_opset_is_refused() -> None:
    model = nodes_alone()
    model.opset_import[0].version = 12
    with pytest.raises(StageError, match=r"opset 12, and preprocessing needs 13; set export"):
        prepend(model, {"x": IMAGE})
