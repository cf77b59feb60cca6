"""Interfaces of models from trial runs."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from buildsys.errors import StageError
from buildsys.stages.reference import proposal
from buildsys.workers.job import Job

NETWORKS = """\
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)

    def forward(self, ids):
        found = self.embedding(ids)
        return {"all": found, "mean": found.mean(1), "few": found[ids > 99]}


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(1, 2, 5), nn.Linear(2 * 24 * 24, 3)

    def forward(self, image):
        return self.linear(self.conv(image).flatten(1))


class One(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        if len(x) > 1:
            raise ValueError("one at a time")
        return super().forward(x)


class Sum(nn.Module):
    def forward(self, a, b):
        return a @ b


class Echo(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        return {"x": super().forward(x), "of rows": x.sum(1), ".": x.new_zeros(len(x) // 2 * 2)}


class Rank(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        return super().forward(x)[0] if len(x) == 1 else super().forward(x)


class Keywords(nn.Linear):
    def __init__(self, width=4):
        super().__init__(width, 4)

    def forward(self, *, image, mask=None):
        return (super().forward(image),), [image.sum(1), None]


class AnyKeywords(nn.Module):
    def forward(self, **inputs):
        return inputs["a"] - inputs["b"]


class Images(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, images):
        if torch.is_tensor(images):
            raise TypeError("images is a list")
        return {"all": super().forward(torch.cat(images))}


class Detector(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 1)

    def forward(self, images: list[torch.Tensor]):
        return [super(Detector, self).forward(image[None]) for image in images]


class Halved(nn.Module):
    def forward(self, x):
        small = nn.functional.max_pool1d(x, 4)
        return x + nn.functional.interpolate(small, scale_factor=4.0)


class Clips(nn.Conv3d):
    def __init__(self):
        super().__init__(3, 4, 1)

    def forward(self, clip):
        return super().forward(clip).mean((2, 3, 4))
"""


UNIFORM = {"random": "uniform", "low": 0, "high": 1}


def propose(project: Path, inputs: Any = None, **source: Any) -> dict[str, Any]:
    (project / "networks.py").write_text(NETWORKS)
    defaults = {"seed": 0, "weights": None, "kwargs": {}, "randomize": False}
    job = Job(
        target="new:m",
        stage="",
        model="m",
        variant="",
        options={"source": {**defaults, **source}, "inputs": inputs or {}, "outputs": {}},
        inputs={},
        outputs={"result": project / "result.json"},
        project=project,
    )
    figures = dict(proposal.run(job).figures)
    return {**figures, "ran": {n: [s["min"], s["max"]] for n, s in figures["dims"].items()}}


def test_key_and_prefix_of_weights_are_proposed(tmp_path: Path) -> None:
    state = {f"net.{name}": tensor for name, tensor in nn.Linear(16, 4).state_dict().items()}
    torch.save({"state_dict": state, "ema": {**state, "net.bias": torch.ones(5)}}, tmp_path / "w")
    weights = {"file": "w", "sha256": None, "key": None, "prefix": None, "strict": True}
    kwargs = {"in_features": 16, "out_features": 4}
    proposed = propose(tmp_path, python="networks.py:nn.Linear", kwargs=kwargs, weights=weights)
    assert proposed["source"]["weights"] == {"file": "w", "key": "state_dict", "prefix": "net"}


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "dims"),
    [
        ("mlp", {"input": ["batch", 16]}, {"output0": ["batch", 4]}, {"batch": [1, 8]}),
        ("Tokens", {"ids": ["batch", 16]},
         {"all": ["batch", 16, 4], "mean": ["batch", 4], "few": [None, 4]}, {"batch": [1, 8]}),
        ("Small", {"image": ["batch", 1, 28, 28]}, {"output0": ["batch", 3]}, {"batch": [1, 8]}),
        ("One", {"x": [1, 4]}, {"output0": [1, 4]}, {}),
        ("Rank", {"x": ["batch", 4]}, {"output0": ["batch", 4]}, {"batch": [2, 8]}),
        ("Detector", {"images": [3, 224, 224]}, {"output0": [1, 4, 224, 224]}, {}),
        ("Clips", {"clip": ["batch", 3, 16, 112, 112]}, {"output0": ["batch", 4]},
         {"batch": [1, 8]}),
    ],
)  # fmt: skip
def test_inputs_follow_from_the_first_layer(
    tmp_path: Path, name: str, inputs: Any, outputs: Any, dims: Any
) -> None:
    found = propose(tmp_path, python=f"networks.py:{name}")
    assert {key: value["shape"] for key, value in found["inputs"].items()} == inputs
    assert {key: value["shape"] for key, value in found["outputs"].items()} == outputs
    assert found["ran"] == dims


def test_a_classifier_gets_the_preprocessing_and_labels_of_its_weights(tmp_path: Path) -> None:
    found = propose(tmp_path, torchvision="squeezenet1_1", weights=None)
    (image,), (logits,) = found["inputs"].values(), found["outputs"].values()
    assert image["preprocess"]["resize"] == 256
    assert logits["labels"] == {"torchvision": "SqueezeNet1_1_Weights.IMAGENET1K_V1"}
    training = proposal.training_of("squeezenet1_1")
    assert training is not None
    other: dict[str, Any] = {"inputs": {"image": {"shape": ["batch", 3, 64, 64]}}, "outputs": {}}
    training.add_to(other)
    assert "preprocess" not in other["inputs"]["image"]


def test_inputs_can_be_given(tmp_path: Path) -> None:
    given = {
        "a": {"shape": ["batch", "width"], "dtype": "float32"},
        "b": {"shape": ["width", 5], "dtype": "float32"},
    }
    found = propose(tmp_path, given, python="networks.py:Sum")
    assert found["outputs"]["output0"]["shape"] == ["batch", 5]
    assert found["ran"] == {"batch": [1, 8], "width": [16, 32]}
    assert not found["guessed"]
    wrong = {**given, "b": {"shape": [7, 5], "dtype": "float32"}}
    with pytest.raises(StageError, match="forward of Sum failed on a float32"):
        propose(tmp_path, wrong, python="networks.py:Sum")


def test_sizes_that_a_network_refuses_between_others_are_left_out(tmp_path: Path) -> None:
    shape = {"x": {"shape": ["batch", 3, "length"], "dtype": "float32"}}
    dims = propose(tmp_path, shape, python="networks.py:Halved")["dims"]
    assert dims["length"] == {"min": 16, "opt": 16, "max": 32, "multiple_of": 4}
    assert dims["batch"] == {"min": 1, "opt": 4, "max": 8}


def shaped(**shapes: list[Any]) -> dict[str, Any]:
    return {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("name", "inputs", "found"),
    [
        ("Keywords", {}, {"keyword": {"image": "image"}, "call": None}),
        ("AnyKeywords", shaped(b=["n"], a=["n"]), {"keyword": {"a": "a", "b": "b"}, "call": None}),
        ("Sum", shaped(b=[4, 3], a=["n", 4]), {"keyword": {"a": "a", "b": "b"}, "call": None}),
        ("Sum", shaped(a=["n", 4], b=[4, 3]), {"keyword": {}, "call": None}),
        ("Sum", shaped(left=["n", 4], right=[4, 3]), {"keyword": {}, "call": None}),
        ("Images", {}, {"call": {"args": [["images"]], "kwargs": {}}}),
        ("Detector", shaped(images=[3, "h", 4]),
         {"call": {"args": [["images"]], "kwargs": {}},
          "inputs": {"images": {"shape": [3, "h", 4], "dtype": "float32", "data": UNIFORM}}}),
    ],
)  # fmt: skip
def test_the_way_in_which_forward_takes_its_inputs(
    tmp_path: Path, name: str, inputs: Any, found: dict[str, Any]
) -> None:
    figures = propose(tmp_path, inputs, python=f"networks.py:{name}")
    keywords = {
        one: spec["keyword"] for one, spec in figures["inputs"].items() if spec.get("keyword")
    }
    assert {"keyword": keywords, **figures} | found == {"keyword": keywords, **figures}
    assert figures["ran"]


def test_a_callable_of_an_onnx_model_becomes_an_onnx_source(tmp_path: Path) -> None:
    (tmp_path / "graph.py").write_text(
        "from onnx import parser\n\n\n"
        "def make(width):\n"
        "    return parser.parse_model('<ir_version: 8, opset_import: [\"\": 17]> g '\n"
        "        f'(float[rows, {width}] x) => (float[rows, {width}] y) {{ y = Relu(x) }}')\n"
    )
    found = propose(tmp_path, python="graph.py:make", kwargs={"width": 3})
    assert (found["source"]["onnx"], found["source"]["kwargs"]) == ("graph.py:make", {"width": 3})
    assert found["outputs"]["y"]["shape"] == ["rows", 3]


def test_outputs_get_names_that_a_manifest_allows(tmp_path: Path) -> None:
    outputs = propose(tmp_path, python="networks.py:Echo")["outputs"]
    assert {name: output["key"] for name, output in outputs.items()} == {
        "x_out": "x", "of_rows": "of rows", "output": ".",
    }  # fmt: skip


def test_an_unusable_onnx_file_is_one_sentence_with_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"

    def refusal(operator: str, inputs: int = 1, **saved: Any) -> str:
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
        weights = helper.make_tensor("w", TensorProto.FLOAT, [4], bytes(16), raw=True)
        domain = "" if operator == "Add" else "my"
        node = helper.make_node(operator, ["wx"[inputs], "w"], ["y"], domain=domain)
        graph = helper.make_graph([node], "g", [x][:inputs], [y], [weights])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file, **saved)
        (tmp_path / "w.bin").unlink(missing_ok=True)
        with pytest.raises(StageError) as caught:
            propose(tmp_path, onnx="net.onnx")
        return caught.value.hint

    external: Any = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    assert refusal("Add", **external).startswith("save the graph again, with its weights next to")
    assert "an operator that is not registered is declared in a manifest (`ops`" in refusal("Mine")
    assert refusal("Add", inputs=0).startswith("its outputs are constants")


def test_an_onnx_file(tmp_path: Path) -> None:
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "h w", None]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "net.onnx")
    found = propose(tmp_path, onnx="net.onnx")
    assert found["inputs"] == {"x": {"shape": ["N", 3, "h_w", "x_3"], "dtype": "float32"}}
    assert found["outputs"] == {"y": {"shape": ["N", 3, 1, 1], "dtype": "float32", "key": None}}
    assert found["ran"] == {"N": [1, 8], "h_w": [16, 32], "x_3": [16, 32]}
    with pytest.raises(StageError, match=r"net\.onnx has no input z"):
        propose(tmp_path, {"z": {"shape": [1], "dtype": "float32"}}, onnx="net.onnx")
