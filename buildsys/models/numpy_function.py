"""Reference functions on numpy arrays."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from buildsys.models.outputs import Declared, check_output, name_outputs
from buildsys.models.user_code import load_callable, reraise_as_stage_error
from buildsys.onnx_graphs.tensors import Tensor, tensor_of

Tensors = Mapping[str, Tensor]
_ARRAYS = (np.ndarray, np.generic, bool, int, float, complex)


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
        if isinstance(result, Mapping) and self._declared:  # it may have further entries
            keys = {output["key"] or name for name, output in self._declared.items()}
            result = {key: result[key] for key in result if key in keys} or result
        tensors = {}
        for name, value in name_outputs(result, self._declared, _ARRAYS, self._name).items():
            declared, tensor = self._declared.get(name, {}), tensor_of(value)
            if declared.get("dtype") == "bfloat16" and tensor.dtype == "float32":
                tensor = tensor_of(value, "bfloat16")  # numpy has none
            check_output(name, tensor.dtype, tensor.shape, declared, dims)
            tensors[name] = tensor
        return tensors
