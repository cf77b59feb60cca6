"""Faster dynamo exports: each one parses and registers the 500 functions of torchlib again."""

import sys
from functools import cache
from typing import Any

import pytest


def parse_torchlib_once(patch: pytest.MonkeyPatch) -> None:
    """Parse torchlib at the first export only, and register its functions once per opset."""
    from onnxscript._framework_apis import torch_2_5
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    make = ONNXRegistry.from_torchlib.__func__

    @cache
    def registry_of(_has_torchvision: bool, *opset: Any, **named_opset: Any) -> ONNXRegistry:
        """Register torchlib; functions for operators of torchvision only if that is loaded."""
        return make(ONNXRegistry, *opset, **named_opset)

    def copied_registry(cls: type[ONNXRegistry], *opset: Any, **named_opset: Any) -> ONNXRegistry:
        """Return a registry that the export may add to; a subclass registers other functions."""
        if cls is not ONNXRegistry:
            return make(cls, *opset, **named_opset)
        registered = registry_of("torchvision" in sys.modules, *opset, **named_opset)
        copy = ONNXRegistry()
        copy._opset_version = registered.opset_version
        copy.functions = {name: [*found] for name, found in registered.functions.items()}
        return copy

    patch.setattr(torch_2_5, "get_torchlib_ops", cache(torch_2_5.get_torchlib_ops))
    patch.setattr(ONNXRegistry, "from_torchlib", classmethod(copied_registry))
