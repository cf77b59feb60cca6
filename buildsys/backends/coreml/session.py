"""Core ML packages loaded by the system's framework, on macOS."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import coremltools as ct
import numpy as np

from buildsys.backends.captured_program import check_inputs
from buildsys.backends.coreml.description import COMPUTE_UNITS
from buildsys.backends.coreml.package import read_engine, unpack
from buildsys.backends.interface import Port, Run
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Array, Tensor, tensor_of


class CoreMlSession:
    """A loaded engine."""

    def __init__(self, engine: Path, compute_units: str) -> None:
        """Compile the package; raise StageError for a damaged one."""
        self._loaded_from = engine, compute_units
        self._interface = read_engine(engine).interface
        self.inputs, self.outputs = (
            tuple(
                Port(port["name"], port["dtype"], tuple(port["shape"]))
                for port in self._interface[role]
            )
            for role in ("inputs", "outputs")
        )
        self._folder = TemporaryDirectory()
        package = unpack(engine, Path(self._folder.name))
        units = ct.ComputeUnit[COMPUTE_UNITS[compute_units]]
        self._model: Any = ct.models.MLModel(str(package), compute_units=units)

    @property
    def profiles(self) -> list[dict[str, dict[str, tuple[int, ...]]]]:
        """Return one profile for each enumerated shape."""
        return [
            {
                port.name: dict.fromkeys(("min", "opt", "max"), _sized(port.shape, sizes))
                for port in self.inputs
            }
            for sizes in self._interface.get("shapes", ())
        ]

    def run(
        self, inputs: Mapping[str, Tensor], profile: int | None = None  # noqa: ARG002
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return the outputs by name."""
        found = self._predict(self._feeds(inputs))
        return {
            port["name"]: _tensor(np.asarray(found[port["feature"]]), port["dtype"])
            for port in self._interface["outputs"]
        }

    def bind(self, inputs: Mapping[str, Tensor], profile: int | None = None) -> Run:  # noqa: ARG002
        """Return a call with these inputs."""
        feeds, model = self._feeds(inputs), self._model
        self._predict(feeds)  # reports wrong inputs
        return lambda: model.predict(feeds)

    def duplicate(self) -> CoreMlSession:
        """Return a session with a separate model."""
        return CoreMlSession(*self._loaded_from)

    def close(self) -> None:
        """Free the model and its files."""
        del self._model
        self._folder.cleanup()

    def _predict(self, feeds: Mapping[str, Array]) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._model.predict(feeds)
        except Exception as error:  # of any class
            text = f"Core ML cannot run the engine: {' '.join(str(error).split())[:300]}"
            raise StageError(text, "the log has the complete message") from error
        return found

    def _feeds(self, inputs: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return the inputs by their names in the package.

        Raises: StageError: one is unfit.
        """
        check_inputs(self.inputs, self._interface["dims"], inputs)
        feeds: dict[str, Array] = {}
        for port in self._interface["inputs"]:
            array = inputs[port["name"]].array
            if port["dtype"] == "int64":
                if array.size and np.abs(array).max() > np.iinfo(np.int32).max:
                    text = f"the input {port['name']} has values beyond 32 bits"
                    raise StageError(text, "Core ML has no 64-bit integers: pass smaller values")
                array = array.astype(np.int32)
            feeds[port["feature"]] = np.ascontiguousarray(array)
        return feeds


def _sized(shape: tuple[int | str | None, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[size] if isinstance(size, str) else int(size or 0) for size in shape)


def _tensor(array: Array, dtype: str) -> Tensor:
    return tensor_of(array.astype(dtype, copy=False), dtype)
