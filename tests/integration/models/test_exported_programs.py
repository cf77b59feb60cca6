"""Programs saved by torch.export, valid and damaged."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_jobs import manifest, stage_job
from torch import nn

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.models.torch_model import Network, from_torch, make_network, to_torch
from buildsys.project.plan import plan_model
from buildsys.stages.export import stage as export
from buildsys.stages.reference import proposal
from buildsys.workers.job import Job

INPUTS = {"x": {"shape": ["batch", 4]}}
SOURCE = {"exported_program": "net.pt2", "trusted": True}
PARTS = ("models/model.json", "data/weights/model_weights_config.json")  # with devices


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x)
        return {"flat": y.reshape(x.shape[0] * 3), "sum": y.sum(1)}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return a saved program with a dynamic batch of 1 to 8."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=8)
    exported = torch.export.export(Net(), (torch.randn(4, 4),), dynamic_shapes={"x": {0: batch}})
    content = io.BytesIO()
    torch.export.save(exported, content)
    return content.getvalue()


def network(folder: Path, content: bytes, inputs: Any = INPUTS) -> Network:
    (folder / "net.pt2").write_bytes(content)
    resolved = manifest(source=SOURCE, inputs=inputs)
    return make_network(next(iter(plan_model(resolved))).options, folder)


def changed(content: bytes, **records: Callable[[bytes], bytes] | bytes) -> bytes:
    """Return an archive with other or more records."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        root = old.namelist()[0].partition("/")[0]
        names = [name.partition("/")[2] for name in old.namelist()]
        for name in (*names, *(name for name in records if name not in names)):
            found = old.read(f"{root}/{name}") if name in names else b""
            change = records.get(name, found)
            new.writestr(f"{root}/{name}", change if isinstance(change, bytes) else change(found))
    return made.getvalue()


def edited(content: bytes, change: Callable[[Any], object]) -> bytes:
    """Return an archive with another program."""

    def edit(text: bytes) -> bytes:
        program = json.loads(text)
        change(program)
        return json.dumps(program).encode()

    return changed(content, **{"models/model.json": edit})


def test_a_program_is_a_network_with_its_weights(tmp_path: Path, program: bytes) -> None:
    made = network(tmp_path, program)
    torch.manual_seed(0)
    expected = Net()
    for batch in (1, 3, 8):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            found = made({"x": x})
            assert torch.equal(found["flat"], expected(x)["flat"])
    assert made.weights == "from net.pt2"
    assert not made.module.training
    with pytest.raises(StageError, match=r"failed on x float32 \[9, 4\]: .*8"):
        made({"x": torch.randn(9, 4)})
    with pytest.raises(StageError, match="has the inputs x, the manifest declares x, y; declare"):
        network(tmp_path, program, {**INPUTS, "y": {"shape": [1]}})


def test_a_program_is_exported_with_its_dynamic_sizes(tmp_path: Path, program: bytes) -> None:
    (tmp_path / "net.pt2").write_bytes(program)
    options = {"exporter": "dynamo", "opset": 18}
    resolved = manifest(source=SOURCE, inputs=INPUTS, export=options)
    figures = export.run(stage_job("export", resolved, tmp_path / "build", tmp_path)).figures
    assert [port["shape"][0] for port in figures["inputs"]] == ["batch"]
    assert [port["name"] for port in figures["outputs"]] == ["flat", "sum"]
    graph = OrtGraph(tmp_path / "build/m/export/model.onnx")
    made = network(tmp_path, program)
    for batch in (1, 3, 8):
        x = torch.randn(batch, 4)
        with torch.no_grad():
            expected = made({"x": x})["flat"]
        assert torch.allclose(to_torch(graph.run({"x": from_torch(x)})["flat"]), expected)


def test_a_manifest_is_proposed_from_the_file(tmp_path: Path) -> None:
    class Product(nn.Module):
        def forward(self, first: torch.Tensor, *, second: torch.Tensor) -> torch.Tensor:
            return first @ second.float()

    batch, width = (torch.export.Dim(name, min=2, max=6) for name in ("n", "w"))
    exported = torch.export.export(
        Product(), (torch.ones(3, 4),), {"second": torch.ones(4, 5, dtype=torch.int32)},
        dynamic_shapes={"first": {0: batch, 1: width}, "second": {0: width}},
    )  # fmt: skip
    torch.export.save(exported, tmp_path / "net.pt2")
    options = {"source": {**SOURCE, "seed": 0}, "inputs": {}, "outputs": {}}
    result = {"result": tmp_path / "result.json"}
    found = proposal.run(Job("new:m", "", "m", "", options, {}, result, tmp_path)).figures
    assert found["inputs"] == {
        "first": {"shape": ["batch", "first_1"], "dtype": "float32", "keyword": None},
        "second": {"shape": ["first_1", 5], "dtype": "int32", "keyword": "second"},
    }
    ends = {name: (span["min"], span["max"]) for name, span in found["dims"].items()}
    assert ends == {"batch": (1, 2), "first_1": (2, 4)}
    assert found["outputs"]["output0"]["shape"] == ["batch", 5]


def nodes(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"]


def unknown(program: Any) -> None:
    program["torch_version"] = "99.0"
    nodes(program)[0]["target"] = "torch.ops.aten.brand_new.default"


def on_gpu(content: bytes) -> bytes:
    return content.replace(b'"type": "cpu"', b'"type": "cuda"')


def newer(program: Any) -> None:
    program["schema_version"]["major"] += 1
    program["torch_version"] = "99.0"


@pytest.mark.parametrize(
    "content",
    [
        lambda p: b"",
        lambda p: p[: len(p) // 2],
        lambda p: changed(p, **{"models/model.json": b"{"}),
        lambda p: edited(p, newer),
        lambda p: edited(p, unknown),
        lambda p: changed(p, **dict.fromkeys(PARTS, on_gpu)),
    ],
    ids=["empty", "truncated", "no JSON", "newer", "operator", "GPU"],
)
def test_a_damaged_or_newer_program_is_one_sentence(
    tmp_path: Path,
    program: bytes,
    content: Callable[[bytes], bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(StageError) as error:
        network(tmp_path, content(program))
    assert error.value.problem.startswith("torch.export cannot load net.pt2: ")
    assert error.value.hint.startswith("save it again with torch ")
    assert "\n" not in str(error.value)
