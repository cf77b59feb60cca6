"""Reference outputs of a ready ONNX file: ONNX Runtime with every graph optimization off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor, tensor_of


class OnnxReference:
    """An ONNX file that is called with named tensors."""

    def __init__(self, file: Path, shown: str, libraries: Iterable[Path] = ()) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        self._shown = shown
        try:
            for library in libraries:
                options.register_custom_ops_library(str(library.absolute()))
            self._session = onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions share no public base
            raise StageError(f"ONNX Runtime cannot load {shown}: {_first_line(error)}") from error
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name, in the file's order."""
        in_numpy = not any(tensor.dtype in BIT_DTYPES for tensor in inputs.values())
        try:
            values = self._run_arrays(inputs) if in_numpy else self._run_values(inputs)
        except Exception as error:  # onnxruntime's exceptions share no public base
            raise StageError(
                f"ONNX Runtime cannot run {self._shown}: {_first_line(error)}"
            ) from error
        return dict(zip(self._outputs, values, strict=True))

    def _run_arrays(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        feeds = {
            name: tensor.array.astype(object) if tensor.dtype == "string" else tensor.array
            for name, tensor in inputs.items()
        }
        return [tensor_of(array) for array in self._session.run(self._outputs, feeds)]

    def _run_values(self, inputs: Mapping[str, Tensor]) -> list[Tensor]:
        """Run with types that numpy lacks; these calls take no strings."""
        feeds = {name: _ort_value(tensor) for name, tensor in inputs.items()}
        return [
            tensor_of(value.numpy())
            for value in self._session.run_with_ort_values(self._outputs, feeds)
        ]


def _ort_value(tensor: Tensor) -> onnxruntime.OrtValue:
    if tensor.dtype in BIT_DTYPES:
        kind = onnx.TensorProto.DataType.Value(tensor.dtype.upper())
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.array, kind)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor.array))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
