"""A residual network that ONNX Runtime has quantized, as a source."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from small_graphs import parse, weights

SYMMETRIC: dict[str, Any] = {
    "activation_type": QuantType.QInt8,
    "weight_type": QuantType.QInt8,
    "per_channel": True,
    "reduce_range": True,  # no overflow without VNNI
    "extra_options": {"ActivationSymmetric": True, "QuantizeBias": False},
}


class Batches(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, size: int = 8) -> None:
        self._left = [{"x": weights(4, 3, size, size, seed=seed)} for seed in range(2)]

    def get_next(self) -> Any:
        return self._left.pop() if self._left else None


def quantized(folder: Path, channels: int = 4, size: int = 8, **options: Any) -> onnx.ModelProto:
    """Write net.onnx; the input x is of ``size``."""
    text = f"""(float[batch,3,{size},{size}] x) => (float[batch,5] y) {{
        [first] c1 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, w1, b1)
        [relu] r1 = Relu(c1)
        [second] c2 = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r1, w2, b2)
        [add] a = Add(c2, r1)
        [flat] f = Flatten(a)
        [head] y = Gemm <transB = 1> (f, w3, b3) }}"""
    scale = np.float32(4 / channels)
    stored = {
        "w1": weights(channels, 3, 3, 3), "b1": weights(channels, seed=1),
        "w2": weights(channels, channels, 3, 3, seed=2) * scale, "b2": weights(channels, seed=3),
        "w3": weights(5, channels * size**2, seed=4), "b3": weights(5, seed=5),
    }  # fmt: skip
    onnx.save(parse(text, stored), folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "net.onnx", Batches(size), **options)
    return onnx.load(folder / "net.onnx")
