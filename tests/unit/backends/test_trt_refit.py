"""Engines with new weights, refitted by each version of TensorRT without a GPU."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from trt_double import RecordingTensorRt, options, planned

from buildsys.backends.interface import Calibration, EarlierBuild
from buildsys.backends.tensorrt.build import build_or_refit
from buildsys.backends.tensorrt.library import (
    RTX,
    TRT_8,
    TRT_10,
    TRT_11,
    TensorRTLibrary,
    check_fields,
)
from buildsys.errors import StageError

VERSIONS = (TRT_8, TRT_10, TRT_11)
BEFORE = {"w": np.arange(4, dtype=np.float32), "b": np.ones(2, np.float32)}
AFTER = {"w": np.arange(4, dtype=np.float32) * 3, "b": np.ones(2, np.float32)}


def onnx_file(folder: Path, weights: dict[str, np.ndarray], node: str = "conv") -> Path:
    """Write a graph of one node and its weights, the last one as external data."""
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    *_, last = weights.values()
    (folder / "model.onnx.data").write_bytes(b"0123" + last.tobytes())
    tensors[-1].ClearField("raw_data")
    tensors[-1].data_location = onnx.TensorProto.EXTERNAL
    place = {"location": "model.onnx.data", "offset": "4", "length": str(last.nbytes)}
    for key, value in place.items():
        tensors[-1].external_data.add(key=key, value=value)
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], node, [], [], tensors)
    (folder / "model.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return folder / "model.onnx"


def build(
    made: RecordingTensorRt, folder: Path, earlier: tuple[EarlierBuild, ...] = (), **fields: Any
) -> dict[str, Any]:
    request = made.request(folder, planned(made.generation, **{"refit": True, **fields}))
    return build_or_refit(made.library, replace(request, earlier=earlier))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of an earlier build and of a new one."""
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    onnx_file(before, BEFORE)
    onnx_file(after, AFTER)
    return before, after


def earlier_build(
    made: RecordingTensorRt, folder: Path, names: tuple[str, ...] = ("w", "b")
) -> Any:
    """Return a build whose engine has the weights ``names``."""
    made.built = json.dumps(
        {name: BEFORE[name].tolist() for name in names if name in BEFORE}
        | {name: [0.0] for name in names if name not in BEFORE}
    ).encode()
    facts = build(made, folder)
    engine, result = folder / "e.engine", folder / "engine.json"
    digest = hashlib.sha256(engine.read_bytes()).hexdigest()
    header = {"engine_sha256": digest, "started": "2026-01-01T00:00:00Z", "build_seconds": 30.0}
    result.write_text(json.dumps({**facts, **header}))
    return EarlierBuild(engine, result)


@pytest.mark.parametrize("generation", VERSIONS)
def test_an_engine_gets_the_weights_of_the_same_graph(
    folders: tuple[Path, Path], generation: str
) -> None:
    made = RecordingTensorRt(generation)
    earlier = earlier_build(made, folders[0])
    made.config = None
    facts = build(made, folders[1], (earlier,))
    assert made.config is None, "it was built"
    engine = folders[1] / "e.engine"
    assert json.loads(engine.read_bytes()) == {name: a.tolist() for name, a in AFTER.items()}
    assert facts["refitted_from"]["started"] == "2026-01-01T00:00:00Z"
    assert facts["layers"] == {"activation": 1}
    assert facts["profiles"]
    assert "not_refitted" not in facts


@pytest.mark.parametrize("generation", VERSIONS)
@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("b",), "the earlier engine cannot replace w"),
        (("w", "b", "folded"), "the graph has no weights folded"),
    ],
)
def test_weights_that_do_not_match_need_a_build(
    folders: tuple[Path, Path], generation: str, names: tuple[str, ...], reason: str
) -> None:
    made = RecordingTensorRt(generation)
    earlier = earlier_build(made, folders[0], names)
    made.built = b"built"
    facts = build(made, folders[1], (earlier,))
    assert (folders[1] / "e.engine").read_bytes() == b"built"
    assert facts["not_refitted"] == reason
    assert "refitted_from" not in facts


def test_another_count_or_type_needs_a_build(folders: tuple[Path, Path]) -> None:
    made = RecordingTensorRt(TRT_8)
    earlier = earlier_build(made, folders[0])
    content = json.loads(earlier.engine.read_bytes())
    earlier.engine.write_bytes(json.dumps({**content, "w": [0.0]}).encode())
    record = json.loads(earlier.result.read_text())
    digest = hashlib.sha256(earlier.engine.read_bytes()).hexdigest()
    earlier.result.write_text(json.dumps({**record, "engine_sha256": digest}))
    facts = build(made, folders[1], (earlier,))
    assert facts["not_refitted"] == "TensorRT refuses the weights w: the count differs"
    for folder, factor in zip(folders, (1, 2), strict=True):
        onnx_file(folder, {"w": np.arange(4) * factor, "b": BEFORE["b"]})
    earlier = earlier_build(made, folders[0])
    facts = build(made, folders[1], (earlier,))
    assert facts["not_refitted"] == "w has changed and is no weight of float32 or float16"


def test_another_graph_or_a_changed_engine_needs_a_build(folders: tuple[Path, Path]) -> None:
    made = RecordingTensorRt(TRT_10)
    earlier = earlier_build(made, folders[0])
    none = "no earlier engine was built from this graph with other weights"
    onnx_file(folders[1], AFTER, node="other")
    assert build(made, folders[1], (earlier,))["not_refitted"] == none
    onnx_file(folders[1], AFTER)
    missing = EarlierBuild(folders[0] / "gone", folders[0] / "gone.json")
    assert "refitted_from" in build(made, folders[1], (missing, earlier))
    earlier.engine.write_bytes(b"{}")  # must not be loaded, as it is code
    assert build(made, folders[1], (earlier,))["not_refitted"] == none


CALIBRATION = Calibration(Path("batches.npz"), "entropy", Path("cache"))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"network": "hook.py:change"}, "network hook"),
        ({"calibration": CALIBRATION}, "calibrated ranges"),
        ({"sparsity": True, "strip_plan": True}, "field sparsity and field strip_plan"),
    ],
)
def test_fields_that_depend_on_weights_need_a_build(
    folders: tuple[Path, Path], fields: dict[str, Any], reason: str
) -> None:
    made = RecordingTensorRt(TRT_11)
    earlier = earlier_build(made, folders[0])
    (folders[1] / "hook.py").write_text("def change(network, config): pass\n")
    request = made.request(
        folders[1],
        planned(TRT_11, refit=True, **{n: v for n, v in fields.items() if n != "calibration"}),
        project=folders[1],
        earlier=(earlier,),
        calibration=fields.get("calibration"),
    )
    facts = build_or_refit(made.library, request)
    assert facts["not_refitted"] == f"its {reason} may depend on the weights"


def test_without_refit_nothing_is_recorded(folders: tuple[Path, Path]) -> None:
    made = RecordingTensorRt(TRT_10)
    assert "refit_basis" not in build(made, folders[0], refit=False)


def test_the_defective_version_is_refused() -> None:
    made = RecordingTensorRt(TRT_11)
    fields = options(TRT_11, refit=True)
    check_fields(made.library, fields)
    library = TensorRTLibrary(made.module, (11, 3, 0))
    with pytest.raises(StageError, match=r"refit: TensorRT 11\.3\.0 may drop biases"):
        check_fields(library, fields)
    check_fields(library, options(TRT_11))
    assert RTX not in VERSIONS  # it has no field `refit`
