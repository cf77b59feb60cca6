"""``mydomain::ScaledClip`` for TensorRT-RTX: a Python plugin using PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorrt_rtx as trt

if TYPE_CHECKING:
    import torch

FIELDS = ("scale", "bounds")
# for __cuda_array_interface__
CUDA_TYPES = {trt.DataType.FLOAT: "<f4", trt.DataType.HALF: "<f2", trt.DataType.BOOL: "|b1"}


class ScaledClip(
    trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime
):
    """Scaled clipping: the clipped values and a mask of unclipped ones."""

    def __init__(self, scale: float, bounds: Iterable[float]) -> None:
        trt.IPluginV3.__init__(self)
        trt.IPluginV3OneCore.__init__(self)
        trt.IPluginV3OneBuild.__init__(self)
        trt.IPluginV3OneRuntime.__init__(self)
        self.plugin_name, self.plugin_version, self.plugin_namespace = "ScaledClip", "1", ""
        self.num_outputs = 2
        self.scale = float(scale)
        self.low, self.high = (float(bound) for bound in bounds)
        # TensorRT reads the fields after the call that returns them
        self.kept = np.array([self.scale], np.float32), np.array([self.low, self.high], np.float32)

    def get_capability_interface(self, kind: trt.PluginCapabilityType) -> trt.IPluginCapability:
        """Return this object, for building and running."""
        return self

    def clone(self) -> trt.IPluginV3:
        """Return a copy."""
        return ScaledClip(self.scale, (self.low, self.high))

    def get_fields_to_serialize(self) -> trt.PluginFieldCollection:
        """Return the fields stored in the engine, passed to ``create_plugin`` on load."""
        pairs = zip(FIELDS, self.kept, strict=True)
        return trt.PluginFieldCollection(
            [trt.PluginField(name, values, trt.PluginFieldType.FLOAT32) for name, values in pairs]
        )

    # building

    def get_output_data_types(self, inputs: Sequence[trt.DataType]) -> list[trt.DataType]:
        """Return the input's type, and bool."""
        return [inputs[0], trt.DataType.BOOL]

    def get_output_shapes(
        self,
        inputs: Sequence[trt.DimsExprs],
        shapes: Sequence[trt.DimsExprs],
        builder: trt.IExprBuilder,
    ) -> list[trt.DimsExprs]:
        """Return the input's shape twice."""
        return [trt.DimsExprs(inputs[0]), trt.DimsExprs(inputs[0])]

    def supports_format_combination(
        self, position: int, tensors: Sequence[trt.DynamicPluginTensorDesc], inputs: int
    ) -> bool:
        """Accept linear float32 and float16; position 0 is the input."""
        tensor, first = tensors[position].desc, tensors[0].desc
        if tensor.format != trt.TensorFormat.LINEAR:
            return False
        if position == 2:
            return bool(tensor.type == trt.DataType.BOOL)
        return tensor.type in (trt.DataType.FLOAT, trt.DataType.HALF) and tensor.type == first.type

    def configure_plugin(self, inputs: Any, outputs: Any) -> None:
        """Do nothing: there is no choice."""

    # running

    def attach_to_context(self, context: trt.IPluginResourceContext) -> trt.IPluginV3:
        """Return a copy for one execution context."""
        return self.clone()

    def on_shape_change(self, inputs: Any, outputs: Any) -> None:
        """Do nothing: there is no state."""

    def enqueue(
        self,
        inputs: Sequence[trt.PluginTensorDesc],
        outputs: Sequence[trt.PluginTensorDesc],
        input_addresses: Sequence[int],
        output_addresses: Sequence[int],
        workspace: int,
        stream: int,
    ) -> None:
        """Compute on TensorRT's stream, in its memory, without waiting."""
        import torch  # not needed to build

        with torch.cuda.stream(torch.cuda.ExternalStream(stream)), torch.inference_mode():
            x = on_gpu(input_addresses[0], inputs[0])
            clipped, inside = (
                on_gpu(*pair) for pair in zip(output_addresses, outputs, strict=True)
            )
            scaled = x * self.scale
            torch.clamp(scaled, self.low, self.high, out=clipped)
            torch.logical_and(scaled > self.low, scaled < self.high, out=inside)


class ScaledClipCreator(trt.IPluginCreatorV3One):
    """Creator of the plugin, from an ONNX node or an engine's fields."""

    def __init__(self) -> None:
        trt.IPluginCreatorV3One.__init__(self)
        self.name, self.plugin_version, self.plugin_namespace = "ScaledClip", "1", ""
        # TensorRT passes only the attributes listed here
        empty = np.array([], np.float32)
        self.field_names = trt.PluginFieldCollection(
            [trt.PluginField(name, empty, trt.PluginFieldType.FLOAT32) for name in FIELDS]
        )

    def create_plugin(
        self, name: str, fields: trt.PluginFieldCollection, phase: trt.TensorRTPhase
    ) -> trt.IPluginV3:
        """Return a plugin. Raises: KeyError: an attribute is missing."""
        values = {field.name: field.data.copy() for field in fields}
        return ScaledClip(values["scale"][0], values["bounds"])


def on_gpu(address: int, tensor: trt.PluginTensorDesc) -> torch.Tensor:
    """Return TensorRT's memory as a PyTorch tensor, without a copy."""
    import torch

    interface = {
        "shape": tuple(tensor.dims),
        "typestr": CUDA_TYPES[tensor.type],
        "data": (address, False),
        "version": 3,
    }
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=interface), device="cuda")
