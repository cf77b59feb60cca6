"""The nodes of an engine that compute with weights quantized without calibration."""

from __future__ import annotations

from pathlib import Path

from buildsys.backends.interface import Options
from buildsys.errors import CheckFailed
from buildsys.onnx_graphs.graph_reader import read_graph

_KERNELS = {
    "int4": ("MatMulNBits",),
    "dynamic": (
        "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "ConvInteger",
        "QAttention",
    ),
}  # fmt: skip


def check_kernels(engine: Path, options: Options) -> None:
    """Check that the optimized graph still computes with quantized weights.

    Raises: CheckFailed: no node of the engine does.
    """
    is_dynamic = options.get("quantization") == "dynamic"
    wanted = _KERNELS.get("dynamic" if is_dynamic else str(options["precision"]))
    if wanted is None:
        return
    nodes = read_graph(engine).graph.node
    if not any(node.op_type in wanted for node in nodes):
        raise CheckFailed(
            f"the engine was requested in {options['precision']}, but none of its nodes is a"
            f" {' or '.join(wanted)}",
            "lower its graph_optimization_level: ONNX Runtime has undone the quantization",
        )
