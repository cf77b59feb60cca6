"""Reference functions on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.models.user_code import load_callable, reraise_as_stage_error, unmet_shape
from buildsys.onnx_graphs.tensors import Tensor, tensor_of

Tensors = Mapping[str, Tensor]
Declared = Mapping[str, Mapping[str, Any]]  # outputs of the manifest


class NumpyFunction:
    """A user's function, called with the inputs in order."""

    def __init__(self, source: Mapping[str, Any], declared: Declared, project: Path) -> None:
        """Load it. Raises: StageError: no such file or function, or the file raises."""
        self._name: str = source["numpy"]
        self._kwargs = source["kwargs"]
        self._declared = declared
        self._project = project
        self._function = load_callable(self._name, project)

    def __call__(self, inputs: Tensors, dims: Mapping[str, int]) -> dict[str, Tensor]:
        """Compute the outputs by name.

        Raises: StageError: the function raises, or its outputs are not as declared.
        """
        arrays = [tensor.values().copy() for tensor in inputs.values()]
        with reraise_as_stage_error(f"{self._name} failed", self._project):
            result = self._function(*arrays, **self._kwargs)
        return {n: self._tensor(n, value, dims) for n, value in self._named(result).items()}

    def _named(self, result: Any) -> dict[str, Any]:
        """Order the results by output name, by default ``output0``, ``output1``."""
        if isinstance(result, Mapping):
            keys = {name: output["key"] or name for name, output in self._declared.items()}
            keys = keys or {str(key): str(key) for key in result}
            if missing := [key for key in keys.values() if key not in result]:
                text = f"{self._name} returned no output {missing[0]}"
                raise StageError(text, f"it returned {', '.join(map(str, result)) or 'nothing'}")
            return {name: result[key] for name, key in keys.items()}
        values = list(result) if isinstance(result, tuple | list) else [result]
        names = list(self._declared) or [f"output{index}" for index in range(len(values))]
        if len(values) != len(names) or result is None:
            count = 0 if result is None else len(values)
            text = f"{self._name} returned {count} outputs, the manifest declares {len(names)}"
            raise StageError(f"{text} ({', '.join(names)})", "return one numpy array per output")
        return dict(zip(names, values, strict=True))

    def _tensor(self, name: str, value: Any, dims: Mapping[str, int]) -> Tensor:
        array, declared = np.asarray(value), self._declared.get(name, {})
        dtype, sizes = declared.get("dtype"), declared.get("shape")
        problem = ""
        if array.dtype.hasobject:
            problem = f"as {type(value).__name__}, not an array"
        else:
            tensor = tensor_of(array)
            if dtype == "bfloat16" and tensor.dtype == "float32":  # numpy has no bfloat16
                tensor = tensor_of(array, dtype)
            if dtype not in (None, tensor.dtype):
                problem = f"as {tensor.dtype}, the manifest declares {dtype}"
            elif sizes is not None and (expected := unmet_shape(tensor.shape, sizes, dims)):
                problem = f"with the shape {list(tensor.shape)}, the manifest declares {expected}"
        if problem:
            raise StageError(
                f"{self._name} returned output {name} {problem}",
                f"correct the function, or outputs.{name}",
            )
        return tensor
