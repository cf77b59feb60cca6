"""A TensorRT without a GPU: records its settings, and has no name that the real version lacks.

A name used by the backend that is not in the API list of the version raises AttributeError, as the
real bindings do.
"""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from onnx import ModelProto
from trt_names import API

from buildsys.backends.interface import BuildRequest
from buildsys.backends.tensorrt.library import (
    RTX,
    TRT_8,
    TRT_10,
    TRT_11,
    TensorRTLibrary,
    library_of,
)
from buildsys.onnx_graphs.graph_reader import read_weights
from buildsys.plan.engine_typing import decide_engine, unknown_version
from buildsys.project.model import model_fields

VERSIONS = {TRT_8: "8.6.0", TRT_10: "10.16.1", TRT_11: "11.4.0", RTX: "1.7.1"}
_LEVELS = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")


def options(generation: str, **fields: Any) -> dict[str, Any]:
    backend = "tensorrt_rtx" if generation == RTX else "tensorrt"
    spec = {
        "model": "m", "source": {"onnx": "m.onnx"}, "inputs": {"x": {"shape": [1]}},
        "engines": [{"name": "e", "backend": backend, **fields}],
    }  # fmt: skip
    engine: dict[str, Any] = model_fields(spec)["engines"][0]
    if generation != RTX and "typing" not in fields:
        engine["typing"] = "strong" if generation == TRT_11 else "weak"
    return engine


def planned(generation: str, **fields: Any) -> dict[str, Any]:
    """Return an engine's options as an action has them."""
    engine = {"name": "e", "toolchain": None, **options(generation, **fields)}
    return dict(decide_engine({"source": None}, engine, unknown_version))


class Listed:
    """An object of a TensorRT class with the names of its API list only."""

    owner = ""

    def __init__(self, made: RecordingTensorRt, **fields: Any) -> None:
        object.__setattr__(self, "_made", made)
        names = API[made.generation][self.owner]
        for name, value in fields.items():
            if name in names:  # defaults of fields that only some versions have
                object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "owner":
            _check_listed(self, name)
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            _check_listed(self, name)
        object.__setattr__(self, name, value)


def _check_listed(found: Listed, name: str) -> None:
    made = object.__getattribute__(found, "_made")
    if name not in API[made.generation][found.owner]:
        raise AttributeError(f"{made.generation}: {found.owner} has no {name}")


class _Profile(Listed):
    owner = "IOptimizationProfile"

    def __init__(self, made: RecordingTensorRt) -> None:
        super().__init__(made)
        self._shapes: dict[str, list[tuple[int, ...]]] = {}

    def set_shape(self, name: str, *points: tuple[int, ...]) -> None:
        assert len(points) == 3
        self._shapes[name] = [tuple(point) for point in points]

    def get_shape(self, name: str) -> list[tuple[int, ...]]:
        return self._shapes[name]

    def __bool__(self) -> bool:
        return True


class _Config(Listed):
    owner = "IBuilderConfig"

    def __init__(self, made: RecordingTensorRt) -> None:
        trt = made.module
        super().__init__(
            made,
            builder_optimization_level=3,
            avg_timing_iterations=1,
            max_aux_streams=-1,
            profiling_verbosity=trt.ProfilingVerbosity.LAYER_NAMES_ONLY,
            hardware_compatibility_level=trt.HardwareCompatibilityLevel.NONE,
            tiling_optimization_level=0,
            l2_limit_for_tiling=-1,
        )
        self._flags = {trt.BuilderFlag.TF32}  # on by default in all versions
        self._pools: dict[int, int] = {}
        self._sources = 0
        self._profiles: list[_Profile] = []
        self._calibration_profile: _Profile | None = None

    def set_flag(self, flag: int) -> None:
        if flag.name not in self._made.deaf_flags:  # type: ignore[attr-defined]
            self._flags.add(flag)

    def clear_flag(self, flag: int) -> None:
        self._flags.discard(flag)

    def get_flag(self, flag: int) -> bool:
        return flag in self._flags

    def set_memory_pool_limit(self, pool: int, size: int) -> None:
        self._pools[pool] = size

    def get_memory_pool_limit(self, pool: int) -> int:
        return self._pools.get(pool, 0)

    def set_tactic_sources(self, sources: int) -> None:
        self._sources = sources

    def get_tactic_sources(self) -> int:
        return self._sources

    def set_preview_feature(self, feature: int, wanted: bool) -> None:
        pass

    def set_compute_capability(self, capability: int, index: int) -> None:
        pass

    def add_optimization_profile(self, profile: _Profile) -> int:
        self._profiles.append(profile)
        return len(self._profiles) - 1

    def set_calibration_profile(self, profile: _Profile) -> None:
        self._calibration_profile = profile

    def get_calibration_profile(self) -> _Profile | None:
        return self._calibration_profile


class _Tensor(Listed):
    owner = "ITensor"

    def get_dimension_name(self, axis: int) -> str:
        return ""


class _Layer(Listed):
    owner = "ILayer"
    _output_type: int | None = None

    def get_output_type(self, index: int) -> int:
        return self._output_type if self._output_type is not None else self._made.tensor.dtype

    def set_output_type(self, index: int, dtype: int) -> None:
        self._output_type = dtype

    def get_output(self, index: int) -> _Tensor:
        return self._made.tensor


class _Network(Listed):
    """One layer whose output has the shape of its input."""

    owner = "INetworkDefinition"

    def get_input(self, index: int) -> _Tensor:
        return self._made.tensor

    get_output = get_input

    def get_layer(self, index: int) -> _Layer:
        return self._made.layer


class _Parser(Listed):
    owner = "OnnxParser"

    def parse_from_file(self, file: str) -> bool:
        self._made.parsed = Path(file).read_bytes()
        self.num_errors = len(self._made.refusals)
        return not self._made.refusals

    def get_error(self, number: int) -> _ParserError:
        error = _ParserError(self._made)
        error._index, error._text = self._made.refusals[number]
        return error

    def supports_operator(self, name: str) -> bool:
        return name in self._made.operators


class _ParserError(Listed):
    owner = "ParserError"
    _index, _text = -1, ""

    def node(self) -> int:
        return self._index

    def desc(self) -> str:
        return self._text


class _Builder(Listed):
    owner = "Builder"

    def create_network(self, flags: int) -> _Network:
        self._made.network_flags = flags
        return _Network(self._made, num_inputs=1, num_outputs=1, num_layers=1)

    def create_builder_config(self) -> _Config:
        self._made.config = _Config(self._made)
        return self._made.config

    def create_optimization_profile(self) -> _Profile:
        return _Profile(self._made)

    def build_serialized_network(self, network: _Network, config: _Config) -> bytes:
        if self._made.logged_error:
            self._made.logger.log(self._made.module.ILogger.ERROR, self._made.logged_error)
        if calibrator := getattr(config, "int8_calibrator", None):
            while calibrator.get_batch(["x"]) is not None:
                pass
            calibrator.write_calibration_cache(b"ranges")
        return self._made.built


class _Engine(Listed):
    """An engine with the names and contents of its weights as its bytes."""

    owner = "ICudaEngine"

    def serialize(self) -> bytes:
        return json.dumps(self._weights).encode()

    def create_serialization_config(self) -> _Serialization:
        return _Serialization(self._made)

    def serialize_with_config(self, config: _Serialization) -> bytes:
        assert config._flags == {"INCLUDE_REFIT"}
        return self.serialize()


class _Serialization(Listed):
    owner = "ISerializationConfig"
    _flags: frozenset[str] = frozenset()

    def set_flag(self, flag: Any) -> None:
        self._flags |= {flag.name}


class _Refitter(Listed):
    owner = "Refitter"

    def __init__(self, made: RecordingTensorRt, engine: _Engine) -> None:
        super().__init__(made)
        self._engine = engine
        self._given: dict[str, list[float]] = {}

    def get_all_weights(self) -> list[str]:
        return list(self._engine._weights)

    def get_missing_weights(self) -> list[str]:
        return [name for name in self._engine._weights if name not in self._given]

    def set_named_weights(self, name: str, weights: Any) -> bool:
        if len(weights) != len(self._engine._weights[name]):
            self._made.logger.log(self._made.module.ILogger.ERROR, "the count differs")
            return False
        self._given[name] = weights.tolist()
        return True

    def refit_cuda_engine(self) -> bool:
        self._engine._weights.update(self._given)
        return True


class _ParserRefitter(Listed):
    owner = "OnnxParserRefitter"

    def __init__(self, made: RecordingTensorRt, refitter: _Refitter) -> None:
        super().__init__(made, num_errors=0)
        self._refitter = refitter

    def refit_from_file(self, file: str) -> bool:
        weights = read_weights(Path(file)).weights
        return all(
            self._refitter.set_named_weights(name, weights[name].array())
            for name in self._refitter.get_all_weights()
            if name in weights
        )


class _Registry(Listed):
    owner = "IPluginRegistry"

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return next(
            (
                each
                for each in self._made.creators
                if (each.name, each.plugin_version, each.plugin_namespace)
                == (name, version, namespace)
            ),
            None,
        )

    get_plugin_creator = get_creator


class _Runtime(Listed):
    owner = "Runtime"
    engine_host_code_allowed = False

    def deserialize_cuda_engine(self, content: bytes) -> _Engine | None:
        engine = _Engine(self._made)
        engine._weights = json.loads(content)
        return engine


class RecordingTensorRt:
    """A TensorRT module of one version, and what its builder was given.

    ``deaf_flags`` are flags that stay off; ``logged_error`` is logged during a build that returns
    an engine all the same.
    """

    def __init__(self, generation: str, shape: tuple[int, ...] = (-1, 4)) -> None:
        self.generation = generation
        self.deaf_flags: set[str] = set()
        self.logged_error = ""
        self.built = b"engine"
        self.creators: list[Any] = []  # of registered plugins
        self.refusals: list[tuple[int, str]] = []  # index of the node, text of the parser
        self.operators: set[str] = set()  # that the parser knows
        self.network_flags = -1
        self.config: Any = None
        self.logger: Any = None
        self.module: Any = self._make_module()
        trt = self.module
        self.tensor = _Tensor(
            self, name="x", shape=shape, dtype=trt.DataType.FLOAT, is_shape_tensor=False
        )
        self.layer = _Layer(self, name="l", type=trt.LayerType.ACTIVATION, num_outputs=1)
        self.library: TensorRTLibrary = library_of(trt)

    def _make_module(self) -> ModuleType:
        module: Any = ModuleType("tensorrt_rtx" if self.generation == RTX else "tensorrt")
        module.__version__ = VERSIONS[self.generation]
        for name, members in API[self.generation].items():
            if members[-2:] == ["name", "value"]:
                setattr(module, name, IntEnum(name, members[:-2], start=0))
        made = self

        class ILogger:
            def __init__(self) -> None:
                made.logger = self

        for level, name in enumerate(_LEVELS):
            setattr(ILogger, name, level)
        module.ILogger = ILogger
        for name in ("IProgressMonitor", "IInt8MinMaxCalibrator", "IInt8EntropyCalibrator2"):
            if name in API[self.generation]:
                setattr(module, name, type(name, (), {}))
        module.Builder = lambda _: _Builder(self, num_DLA_cores=0, max_threads=1)
        module.OnnxParser = lambda *_: _Parser(self, num_errors=0)
        module.Runtime = lambda _: _Runtime(self)
        module.Refitter = lambda engine, _: _Refitter(self, engine)
        module.Weights = lambda array: array
        if "OnnxParserRefitter" in API[self.generation]:
            module.OnnxParserRefitter = lambda refitter, _: _ParserRefitter(self, refitter)
        module.init_libnvinfer_plugins = lambda *_: True
        module.get_plugin_registry = lambda: _Registry(
            self, plugin_creator_list=self.creators, all_creators=self.creators
        )
        return module

    def request(self, folder: Path, options: dict[str, Any], **fields: Any) -> BuildRequest:
        """Return the request to build an engine of the double's network."""
        if not (folder / "model.onnx").exists():
            (folder / "model.onnx").write_bytes(ModelProto(ir_version=8).SerializeToString())
        return BuildRequest(
            model="m",
            onnx=folder / "model.onnx",
            engine=folder / "e.engine",
            options=options,
            inputs={"x": {"shape": ["batch", 4], "dtype": "float32"}},
            dims={"batch": {"min": 1, "opt": 2, "max": 8}},
            **fields,
        )
