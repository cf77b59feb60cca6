"""Rounding noise of a graph: effects of last bits on outputs.

Rounding the result of an operation has the effect of a small change of its operands (backward
error analysis), so two right implementations differ about as much as one of them does after a
change of all weights and inputs in the last bit (Monte Carlo arithmetic). A network that amplifies
rounding, e.g. by subtracting similar numbers, cannot be compared more exactly than that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from buildsys.onnx_graphs.onnx_file import load_model
from buildsys.onnx_graphs.output_policies import Policy, compare_outputs
from buildsys.onnx_graphs.result_types import format_error
from buildsys.onnx_graphs.tensor_comparison import Comparison
from buildsys.onnx_graphs.tensors import BITS, Tensor, nudge, nudged_tensors
from buildsys.stages.common.equivalence import open_graph
from buildsys.workers.job import Job

Tensors = Mapping[str, Tensor]
_UNSTABLE = "a change of the last bits of weights and inputs changes this output as well"
_DRAWS = 3
_FACTOR = 4.0  # times the noise: both sides round, at more places than weights and inputs
_MOST = 10.0  # times the limit: errors beyond it are never excused
_SIZES: Mapping[str, Sequence[int]] = {  # operator -> inputs that decide the shape of its output
    "ConstantOfShape": (0,), "Expand": (1,), "OneHot": (1,), "Pad": (1,), "Range": (0, 1, 2),
    "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Tile": (1,), "TopK": (1,),
    "Upsample": (1,),
}  # fmt: skip
_MOST_SIZES = 8  # elements of a constant that sizes are computed from
_ELEM_TYPES = {
    TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16",
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64",
}  # fmt: skip


@dataclass(frozen=True)
class RoundingNoise:
    """Rounding noise of a graph's file, measured only after an error."""

    job: Job
    path: Path

    def excuse(
        self,
        compared: Mapping[str, Comparison],
        actual: Tensors,
        expected: Tensors,
        limits: Mapping[str, float | None],
        policies: Mapping[str, Policy],
        *,
        inputs: Tensors,
        assembled: Collection[str] = (),
    ) -> dict[str, Comparison]:
        """Pass the errors of ``compared`` that noise explains.

        Such an error is at most ``_FACTOR`` times the noise and ``_MOST`` times ``rtol``; the other
        limits hold. Others get a note if the noise alone breaks the limits.
        """
        rtol = limits["rtol"]
        failed = [name for name, comparison in compared.items() if not comparison.passed]
        if not failed or not rtol:
            return dict(compared)

        def compare(a: Tensors, b: Tensors, limit: float) -> dict[str, Comparison]:
            wider = {**limits, "rtol": limit}
            return compare_outputs(a, b, wider, policies, inputs=inputs, assembled=assembled)

        widest = compare(actual, expected, _MOST * rtol)
        noise = {name: 0.0 for name in failed if widest[name].passed}
        excused = dict(compared)
        for draw in range(_DRAWS if noise else 1):
            nudged = self.nudged_outputs(inputs, draw)
            for name, moved in compare(nudged, actual, _MOST * rtol).items():
                if name in noise:
                    noise[name] = max(noise[name], moved.relative)
                elif name in failed and not moved.passed:
                    excused[name] = replace(compared[name], note=compared[name].note or _UNSTABLE)
        for name, moved_by in noise.items():
            again = compare(actual, expected, min(max(rtol, _FACTOR * moved_by), _MOST * rtol))
            if again[name].passed:
                note = (
                    f"its relative error {format_error(again[name].relative)} is beyond {rtol:g},"
                    f" but a change of the last bits moves this output by {format_error(moved_by)}"
                )
                excused[name] = replace(again[name], note=note)
        return excused

    def nudged_outputs(self, inputs: Tensors, draw: int) -> dict[str, Tensor]:
        """Compute the outputs with the last bits of weights and inputs changed."""
        rng, model = np.random.default_rng(draw), load_model(self.path)
        exact = size_constants(model)
        for tensor in model.graph.initializer:
            dtype = _ELEM_TYPES.get(tensor.data_type)
            if dtype and tensor.name not in exact:
                values = numpy_helper.to_array(tensor)
                bits = nudge(values.view(BITS[dtype]), values.astype(np.float64), rng)
                changed = numpy_helper.from_array(bits.view(values.dtype), tensor.name)
                tensor.CopyFrom(changed)
        return open_graph(self.job, model).run(nudged_tensors(inputs, rng))


def size_constants(model: ModelProto) -> set[str]:
    """Name the small constants that shapes are computed from, such as the scales of Resize.

    Another last bit of them gives another size, which is no matter of rounding.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    waiting = [
        name
        for node in model.graph.node
        for place, name in enumerate(node.input)
        if place in _SIZES.get(node.op_type, ())
    ]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in makers and makers[name].op_type not in ("Shape", "Size"):
            waiting += makers[name].input
    return {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.name in reached and np.prod(tensor.dims, dtype=np.int64) <= _MOST_SIZES
    }
