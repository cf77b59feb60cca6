"""Outputs assembled from parts of unlike meaning, such as boxes and scores."""

from __future__ import annotations

from onnx import ModelProto

_ASSEMBLING = ("Concat", "ScatterND", "ScatterElements")
# the layers before these are one computation: what is joined there is not a part of the output
_CONTRACTING = (
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul",
    "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN",
)  # fmt: skip
_FIRST_INPUT_ONLY = (  # the others are indices, shapes and sizes
    "Expand", "Gather", "GatherElements", "GatherND", "Pad", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Tile", "TopK", "Unsqueeze",
)  # fmt: skip


def assembled_outputs(model: ModelProto) -> list[str]:
    """Return the outputs with a concatenation or scatter after their last contraction."""
    producers = {name: node for node in model.graph.node for name in node.output if name}
    found = []
    for output in model.graph.output:
        pending, seen = [output.name], set()
        while pending:
            node = producers.get(name := pending.pop())
            if node is None or name in seen or node.op_type in _CONTRACTING:
                continue
            seen.add(name)
            if node.op_type in _ASSEMBLING and len(node.input) > 1:
                found.append(output.name)
                break
            pending += node.input[:1] if node.op_type in _FIRST_INPUT_ONLY else node.input
    return found
