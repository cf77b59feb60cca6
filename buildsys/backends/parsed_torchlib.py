"""Torchlib, parsed when this module is imported: by a server, before it forks for exports."""

from functools import cache, cached_property
from types import FunctionType

from onnxscript._internal.values import TracedOnnxFunction
from torch.onnx._internal.exporter import _schemas
from torch.onnx._internal.exporter._registration import ONNXRegistry


class _EveryOpset(ONNXRegistry):
    """Torchlib's functions for all opsets."""

    def _cleanup_registry_based_on_opset_version(self) -> None:
        """Keep all functions."""


def parse_torchlib() -> ONNXRegistry:
    """Parse torchlib's 500 functions once; every dynamo export would parse them again.

    It would also read their signatures again.
    """
    parsed = vars(TracedOnnxFunction).get("function_ir")
    if isinstance(parsed, property) and parsed.fget is not None:
        cached = cached_property(parsed.fget)
        cached.__set_name__(TracedOnnxFunction, "function_ir")
        TracedOnnxFunction.function_ir = cached  # type: ignore[method-assign, assignment]
    read_signature = getattr(_schemas, "op_signature_from_function", None)
    if isinstance(read_signature, FunctionType):
        _schemas.op_signature_from_function = cache(read_signature)
    return _EveryOpset.from_torchlib()


TORCHLIB = parse_torchlib()
