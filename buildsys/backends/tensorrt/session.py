"""A TensorRT engine on the first GPU: loading, inspection, closing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from buildsys.backends.cuda.device import Device
from buildsys.backends.interface import Figures
from buildsys.backends.tensorrt import version_adapter
from buildsys.backends.tensorrt.enum_tables import DTYPES
from buildsys.backends.tensorrt.inference import Inference
from buildsys.backends.tensorrt.inspector import precision_facts, read_layers
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.log import load_failure, log_of
from buildsys.backends.tensorrt.tensor_layouts import LINEAR
from buildsys.errors import StageError
from buildsys.onnx_graphs.tensors import Tensor

_STAND_INS = {"int64": "int32", "float64": "float32"}


class TensorRtSession(Inference):
    """A loaded engine with one execution context, on the first GPU."""

    def __init__(
        self,
        library: Library,
        engine_file: Path,
        kernels: Path | None = None,
        *,
        host_code: bool = False,
    ) -> None:
        """Load an engine; ``kernels`` is TensorRT-RTX's cache of compiled kernels.

        ``host_code`` allows code for the processor, which version-compatible engines contain.
        """
        log, gpu = log_of(library), Device(0)
        self._stack = ExitStack()
        try:
            with gpu.current(), log.collected() as messages:
                self._runtime = library.trt.Runtime(log.logger)
                self._runtime.engine_host_code_allowed = host_code
                engine = self._runtime.deserialize_cuda_engine(engine_file.read_bytes())
                if engine is None:
                    raise load_failure(engine_file.name, messages, library.release)
                settings = self._stack.enter_context(
                    version_adapter.runtime_cache(library, engine, kernels)
                )
                arguments = () if settings is None else (settings,)
                context = engine.create_execution_context(*arguments)
                if context is None:
                    raise load_failure(engine_file.name, messages, library.release)
                super().__init__(library, gpu, engine, context)
        except BaseException:
            gpu.close()
            raise

    @property
    def stand_in_types(self) -> dict[str, str]:
        """Types that this TensorRT lacks, and those of its parser instead."""
        words = DTYPES.words(self._library).values()
        return {lacked: dtype for lacked, dtype in _STAND_INS.items() if lacked not in words}

    def describe(self, precision: str) -> Figures:
        """Return layers with their precision, tensor formats and memory needs.

        ``precision`` is the requested precision of the engine.
        """
        inspector = self._engine.create_engine_inspector()
        times = self._layer_times()
        # without a context whose shapes are set, TensorRT 8.6 does not know the formats
        inspector.execution_context = self._context
        text = inspector.get_engine_information(self._library.trt.LayerInformationFormat.JSON)
        return {
            "formats": {
                name: layout for name, layout in self.tensors.layouts.items() if layout != LINEAR
            },
            **self.memory_figures(),
            **precision_facts(read_layers(text, precision), times, precision),
        }

    def memory_figures(self) -> Figures:
        """Return a context's memory in addition to the weights."""
        return {
            "device_memory_bytes": version_adapter.device_memory_bytes(self._library, self._engine)
        }

    def close(self) -> None:
        """Free the context, the engine and the device memory, in this order."""
        if self._engine is None:
            return
        with self.gpu.current():
            if self._finished is not None:
                self._finished.wait()
            self._context = None
            self._stack.close()
            self._engine = self._runtime = None
        self._reset_buffers()
        self.gpu.close()

    def _layer_times(self) -> dict[str, float]:
        """Return the milliseconds per layer on zeros; {} if they fail.

        Inputs with opt values have those, as they decide shapes.
        """
        inputs = {}
        times: dict[str, float] = {}

        class Profiler(self._library.trt.IProfiler):  # type: ignore[misc,name-defined]
            def report_layer_time(self, layer_name: str, ms: float) -> None:
                times[layer_name] = times.get(layer_name, 0.0) + ms

        try:
            for name, span in self.profiles[0].items():
                dtype, stored = self.tensors.types[name]
                values = np.zeros(span["opt"], stored)
                if "opt_values" in span:
                    values = np.array(span["opt_values"], values.dtype).reshape(span["opt"])
                elif self._engine.is_shape_inference_io(name):  # zeros there crash TensorRT 8.6
                    return {}
                inputs[name] = Tensor(values, dtype)
            call = self.bind(inputs)
            call()
            self._timer = Profiler()  # must outlive the context
            self._context.profiler = self._timer
            call()
        except StageError:
            return {}
        return times
