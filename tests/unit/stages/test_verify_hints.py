"""What the stage verify advises where an engine is off by no more than TF32 explains."""

from __future__ import annotations

from typing import Any

import pytest

from buildsys.stages.verify.stage import without_tf32


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"backend": "tensorrt", "precision": "fp32", "tf32": True, "flags": {}}, "tf32: false"),
        ({"backend": "tensorrt", "precision": "fp32", "tf32": False, "flags": {}}, ""),
        ({"backend": "tensorrt", "precision": "fp16", "tf32": True, "flags": {}}, ""),
        ({"backend": "tensorrt_rtx", "precision": "fp32", "flags": {}}, "flags: {tf32: false}"),
        ({"backend": "tensorrt_rtx", "precision": "fp32", "flags": {"tf32": False}}, ""),
        ({"backend": "onnxruntime", "precision": "fp32"}, ""),
    ],
)
def test_only_engines_that_multiply_in_tf32_are_told_how_not_to(
    options: dict[str, Any], advice: str
) -> None:
    assert without_tf32(options) == advice
