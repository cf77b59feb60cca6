"""Reference functions on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.errors import StageError
from buildsys.models.user_code import (
    load_callable,
    reraise_as_stage_error,
    unmet_shape,
    with_article,
)
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
        outputs = {}
        for name, value in self._named(result).items():
            declared = self._declared.get(name, {})
            array = np.asarray(value)
            if array.dtype.hasobject:
                kind = with_article(type(value).__name__)
                text = f"{self._name} returned {kind} as output {name}, not an array"
                raise StageError(text, "return one numpy array per output")
            outputs[name] = _as_declared(self._name, name, array, declared, dims)
        return outputs

    def _named(self, result: Any) -> dict[str, Any]:
        """Order the results by output name, by default ``output0``, ``output1``."""
        if isinstance(result, Mapping):
            keys = {name: output["key"] or name for name, output in self._declared.items()}
            keys = keys or {str(key): str(key) for key in result}
            if missing := [key for key in keys.values() if key not in result]:
                present = ", ".join(map(str, result)) or "nothing"
                text = f"{self._name} returned no output {missing[0]}"
                raise StageError(text, f"it returned {present}")
            return {name: result[key] for name, key in keys.items()}
        values = list(result) if isinstance(result, tuple | list) else [result]
        names = list(self._declared) or [f"output{index}" for index in range(len(values))]
        if len(values) != len(names) or result is None:
            count = 0 if result is None else len(values)
            text = f"{self._name} returned {count} outputs, the manifest declares {len(names)}"
            raise StageError(f"{text} ({', '.join(names)})", "return one numpy array per output")
        return dict(zip(names, values, strict=True))


def _as_declared(
    function: str,
    name: str,
    array: np.ndarray[Any, Any],
    declared: Mapping[str, Any],
    dims: Mapping[str, int],
) -> Tensor:
    """Return an output. Raises: StageError: its shape or dtype is not the declared one."""
    tensor = tensor_of(array)
    if declared.get("dtype") not in (None, tensor.dtype):
        dtype = declared["dtype"]
        if dtype != "bfloat16" or tensor.dtype != "float32":  # numpy has no bfloat16
            text = f"{function} returned output {name} as {tensor.dtype}"
            hint = f"convert it with .astype, or correct the dtype in outputs.{name}"
            raise StageError(f"{text}, the manifest declares {dtype}", hint)
        tensor = tensor_of(array, dtype)
    if declared.get("shape") is not None:
        shape = list(tensor.shape)
        if expected := unmet_shape(shape, declared["shape"], dims):
            text = f"{function} returned output {name} with the shape {shape}"
            hint = f"correct the function, or the shape in outputs.{name}"
            raise StageError(f"{text}, the manifest declares {expected}", hint)
    return tensor
