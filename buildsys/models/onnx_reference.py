"""Reference outputs of a given ONNX file: ONNX Runtime without graph optimizations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from buildsys.errors import StageError
from buildsys.onnx_graphs.onnx_file import first_line
from buildsys.onnx_graphs.tensors import BIT_DTYPES, Tensor, tensor_of


class OnnxReference:
    """An ONNX file, callable with named tensors."""

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
            raise StageError(f"ONNX Runtime cannot load {shown}: {first_line(error)}") from error
        self._outputs = [output.name for output in self._session.get_outputs()]

    def __call__(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name, in the file's order.

        Raises: StageError: ONNX Runtime refuses the inputs.
        """
        has_bits = any(tensor.dtype in BIT_DTYPES for tensor in inputs.values())  # not in numpy
        try:
            if has_bits:  # takes no strings
                values = {name: _ort_value(tensor) for name, tensor in inputs.items()}
                found = self._session.run_with_ort_values(self._outputs, values)
                found = [value.numpy() for value in found]
            else:
                arrays = {
                    name: tensor.array.astype(object) if tensor.dtype == "string" else tensor.array
                    for name, tensor in inputs.items()
                }
                found = self._session.run(self._outputs, arrays)
        except Exception as error:  # onnxruntime's exceptions share no public base
            message = f"ONNX Runtime cannot run {self._shown}: {first_line(error)}"
            raise StageError(message) from error
        return dict(zip(self._outputs, map(tensor_of, found), strict=True))


def _ort_value(tensor: Tensor) -> onnxruntime.OrtValue:
    if tensor.dtype in BIT_DTYPES:
        kind = onnx.TensorProto.DataType.Value(tensor.dtype.upper())
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(tensor.array, kind)
    return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor.array))
