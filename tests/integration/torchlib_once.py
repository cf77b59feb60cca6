"""Faster dynamo exports: each one parses the 500 functions of torchlib again, in 1.5 s."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest


def parse_torchlib_once(patch: pytest.MonkeyPatch) -> None:
    """Parse torchlib at the first export, and give every export a registry of its own."""
    from onnxscript._framework_apis import torch_2_5
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from buildsys.backends.operator_support import torch_registries

    patch.setattr(torch_2_5, "get_torchlib_ops", cache(torch_2_5.get_torchlib_ops))
    parse: Any = ONNXRegistry.from_torchlib

    def from_torchlib(kind: type[ONNXRegistry], opset_version: int = 18) -> ONNXRegistry:
        if kind is ONNXRegistry:
            return torch_registries._registry_for(opset_version)
        return parse.__func__(kind, opset_version)

    patch.setattr(ONNXRegistry, "from_torchlib", classmethod(from_torchlib))
