"""Hints of the verify stage on errors explained by TF32."""

from __future__ import annotations

from typing import Any

import pytest

from buildsys.system.backend_registry import describe_backend


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
def test_the_tf32_remedy_is_for_engines_that_use_tf32(options: dict[str, Any], advice: str) -> None:
    assert describe_backend(options["backend"]).exact_float32(options) == advice
