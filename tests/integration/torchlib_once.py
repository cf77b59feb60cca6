"""Faster dynamo exports: each one parses and registers the 500 functions of torchlib again."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest


def parse_torchlib_once(patch: pytest.MonkeyPatch) -> None:
    """Parse torchlib at the first export only, and register its functions once per opset."""
    from onnxscript._framework_apis import torch_2_5
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    registry_of = cache(ONNXRegistry.from_torchlib)
    make = ONNXRegistry.from_torchlib.__func__

    def copied_registry(cls: type[ONNXRegistry], *opset: Any, **named_opset: Any) -> ONNXRegistry:
        """Return a registry that the export may add to; a subclass registers other functions."""
        if cls is not ONNXRegistry:
            return make(cls, *opset, **named_opset)
        registered, copy = registry_of(*opset, **named_opset), ONNXRegistry()
        copy._opset_version = registered.opset_version
        copy.functions = {name: [*found] for name, found in registered.functions.items()}
        return copy

    patch.setattr(torch_2_5, "get_torchlib_ops", cache(torch_2_5.get_torchlib_ops))
    patch.setattr(ONNXRegistry, "from_torchlib", classmethod(copied_registry))
