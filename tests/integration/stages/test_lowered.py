"""Graphs in the newest opset that an engine's library reads."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from small_graphs import data_role, parse, write

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import save_case, tensor_of
from buildsys.stages.convert import report
from buildsys.stages.convert import stage as convert
from buildsys.workers.job import Job, StageResult

AXES = {"axes": np.int64([2, 3]), "none": np.int64([])}
X = "float[n,3,4,6] x"


def lower(folder: Path, model: onnx.ModelProto) -> tuple[StageResult, onnx.ModelProto]:
    """Lower a graph to opset 17 as for TensorRT 8.6."""
    source, out = write(folder / "simplify", model), folder / "lowered"
    out.mkdir()
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 6)).astype(np.float32)
    save_case(folder / "min.npz", {"x": tensor_of(x)}, {})
    job = Job(
        target="convert:m:opset17", stage="convert", model="m", variant="opset17",
        options={"lowered": {"opset": 17, "ir_version": 8}, "cases": {"min": {}}},
        inputs={"model": source, **data_role(source), "case.min": folder / "min.npz"},
        outputs={"model": out / "model.onnx", "result": out / "convert.json"}, project=folder,
    )  # fmt: skip
    return convert.run(job), onnx.load(out / "model.onnx")


@pytest.mark.parametrize(
    ("opset", "text"),
    [
        (18, f"""({X}) => (float[n,3,1,1] y) {{
             y = ReduceMean <noop_with_empty_axes=0> (x, axes) }}"""),
        (18, f"({X}) => (float[1,1,1,1] y) {{ y = ReduceMax (x, none) }}"),
        (20, f"""({X}) => (float[n,3,4] y) {{
             last = Constant <value_ints=[-1]> ()
             y = ReduceL2 <keepdims=0> (x, last) }}"""),
        (18, f"""({X}) => (float[n,3,2,6] y) {{
             y, z = Split <axis=2, num_outputs=2> (x) }}"""),
        (18, f"""({X}) => (float[n,3,8,12] y) {{
             y = Resize <mode="nearest", antialias=0> (x, , scales) }}"""),
        (19, f"({X}) => (float[n,3,6,8] y) {{ y = Pad <mode=\"reflect\"> (x, pads, , ) }}"),
        (20, f"""({X}) => (float[n,3,2,2] y) {{
             n = Shape <start=0, end=1> (x)
             size = Concat <axis=0> (n, grid)
             zeros = ConstantOfShape (size)
             y = GridSample <mode="linear"> (x, zeros) }}"""),
        (18, f"""({X}) => (float[n,3,4,6] y) {{
             yes = Constant <value_int=1> ()
             cond = Cast <to=9> (yes)
             y = If (cond) <
               then_branch = g1 () => (float[n,3,4,6] a) {{
                 m = ReduceMean (x, axes)
                 a = Sub (x, m) }},
               else_branch = g2 () => (float[n,3,4,6] b) {{ b = Identity (x) }}> }}"""),
        (17, f"({X}) => (float[n,3,4,6] y) {{ y = Relu (x) }}"),
    ],
)  # fmt: skip
def test_a_graph_computes_the_same_in_the_older_opset(
    tmp_path: Path, opset: int, text: str
) -> None:
    stored = {
        **AXES, "scales": np.float32([1, 1, 2, 2]), "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
        "grid": np.int64([2, 2, 2]),
    }  # fmt: skip
    used = {name: array for name, array in stored.items() if name in text}
    result, lowered = lower(tmp_path, parse(text, used, opset))
    assert result.status == "passed"
    assert result.figures["cases"]["min"]["y"]["max_abs"] == 0
    assert report.key_figure(result.figures) == f"opset {opset} → 17"  # type: ignore[arg-type]
    assert (lowered.opset_import[0].version, lowered.ir_version) == (17, 8)
    assert OrtGraph(tmp_path / "lowered/model.onnx").outputs


@pytest.mark.parametrize(
    ("opset", "text", "what"),
    [
        (18, f"({X}) => (float[n,3,4,6] y) {{ [\"m\"] y = Mish (x) }}",
         "the operator of Mish (node m)"),
        (18, f"({X}) => (float[n,3,2,3] y) {{ y = Resize <antialias=1> (x, , scales) }}",
         "the attribute antialias of Resize (node y)"),
        (18, f"({X}) => (float[n,3,6,8] y) {{ y = Pad (x, pads, , axes) }}",
         "the input axes of Pad (node y)"),
        (18, f"""({X}) => (float[n,3,1,1] y) {{
             size = Shape (x)
             last = Slice (size, two, three)
             y = ReduceMean (x, last) }}""", "the input axes of ReduceMean (node y)"),
        (18, f"({X}) => (float[n,3,4,6] y) {{ y = ScatterND <reduction=\"max\"> (x, place, one) }}",
         "reduction max of ScatterND (node y)"),
        (19, f"({X}) => (float[n,3,4,8] y) {{ y = Pad <mode=\"wrap\"> (x, around) }}",
         "mode wrap of Pad (node y)"),
    ],
)  # fmt: skip
def test_what_the_older_opset_lacks_is_named(
    tmp_path: Path, opset: int, text: str, what: str
) -> None:
    stored = {
        **AXES, "scales": np.float32([1, 1, 0.5, 0.5]), "pads": np.int64([1, 1, 1, 1]),
        "two": np.int64([2]), "three": np.int64([3]), "place": np.int64([[0, 0, 0, 0]]),
        "one": np.float32([9]), "around": np.int64([0, 0, 0, 1, 0, 0, 0, 1]),
    }  # fmt: skip
    used = {name: array for name, array in stored.items() if name in text}
    with pytest.raises(StageError) as error:
        lower(tmp_path, parse(text, used, opset))
    assert "export: {exporter: dynamo, opset: 18}" in error.value.changes
    assert error.value.problem == (f"the graph cannot be lowered to opset 17: {what} is newer")
