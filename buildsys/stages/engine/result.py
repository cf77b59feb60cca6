"""The result file of the engine stage: ``engine.json``, documented in docs/engine_json.md."""

from __future__ import annotations

from typing import Any

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


class BuildEnvironment(TypedDict, total=False):
    """Libraries and device of a build."""

    openvino: str
    onnxruntime: str
    tensorrt: str
    tensorrt_rtx: str
    executorch: str
    coremltools: str
    platform: str
    cpu: str
    instructions: list[str]
    gpu: str
    compute_capability: str
    driver: str
    cuda: str  # newest version of the driver
    cuda_runtime: str  # the library's


class PrecisionShares(TypedDict, total=False):
    """Type -> share."""

    layers: dict[str, float]
    time: dict[str, float]
    weights: dict[str, float]


class Plugin(TypedDict, total=False):
    """A TensorRT plugin of the engine."""

    operator: str
    name: str
    version: str
    namespace: str
    file: str
    file_sha256: str
    bundled: str  # instead of a file: the library that has it, such as TensorRT 8.6.0


class TimingCache(TypedDict, total=False):
    """The timing cache of a TensorRT build."""

    digest: str
    bytes: int
    added_bytes: int
    lent: str  # digest of the timings that the build began with


class SlowLayer(TypedDict, total=False):
    """A layer with its time, in the result of engine or bench."""

    name: str
    kind: str
    precision: str | None
    time_ms: float
    share: float  # share of the engine's time
    provider: str  # absent if all nodes run on the CPU
    provider_share: float  # share of all its nodes
    nodes: list[str]  # names in the ONNX graph


class RefittedFrom(TypedDict, total=False):
    """The earlier build whose engine got new weights."""

    engine_sha256: str
    started: str
    build_seconds: float


class ProviderNodes(TypedDict, total=False):
    """The nodes of an engine on one execution provider of ONNX Runtime."""

    nodes: int
    shapes: int  # on the CPU: nodes that compute shapes, which every provider leaves there
    names: list[str]  # on the CPU: the first of the others, with their operators


class Delegated(TypedDict, total=False):
    """Operators that a delegate runs, and those left to portable kernels (ExecuTorch)."""

    share: float  # share of all operators
    operators: dict[str, int]
    portable: dict[str, int]


class PackageWeights(TypedDict, total=False):
    """The weights of a Core ML package."""

    count: int
    bytes: int
    compared: int  # those that are parameters of the program
    computed: list[str]  # the first of those that the converter computed from parameters


class EngineFile(TypedDict):
    """A file of the engine's folder."""

    bytes: int
    sha256: str


class BuilderCalibration(TypedDict, total=False):
    """int8 calibration by TensorRT itself."""

    algorithm: str
    batches_sha256: str
    cache_sha256: str


class EngineResult(ResultHeader, total=False):
    """The built engine. Fields unknown to a backend are left out."""

    backend: str
    settings: dict[str, Any]
    profiles: list[dict[str, dict[str, list[int]]]]  # input -> min, opt, max
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    formats: dict[str, str]
    layers: int | dict[str, int] | list[Any]  # older versions wrote a count or a list
    engine_layers: dict[str, int]
    precision_shares: PrecisionShares
    slowest_layers: list[SlowLayer]  # only TensorRT; bench times those of ONNX Runtime
    layer_nodes: list[SlowLayer]  # only TensorRT: all layers with all their nodes
    source_nodes: dict[str, list[str]]  # changed node of the engine -> nodes of the ONNX graph
    placement: dict[str, ProviderNodes]  # unless all nodes run on the CPU
    provider_libraries: dict[str, str]  # distribution -> version
    precision_unknown: str
    precision_of: str
    device_memory_bytes: int
    delegated: Delegated
    weights: PackageWeights
    specification: int  # Core ML's
    systems: str  # the oldest that run the engine
    ranges: dict[str, list[int | list[int]]]  # input -> size, or [min, max], of each axis
    operators: dict[str, str]  # custom operator -> kind and file
    plugins: list[Plugin]
    calibration: BuilderCalibration
    build_seconds: float
    phases: dict[str, float]
    timing_cache: TimingCache
    built_with: BuildEnvironment
    portability: dict[str, Any]
    refitted_from: RefittedFrom  # instead of a build
    not_refitted: str  # why earlier engines could not be refitted
    refit_basis: dict[str, Any]  # digests of the graph's skeleton and of its weights
    files: dict[str, EngineFile]
    engine_sha256: str
    engine_bytes: int
    onnx_sha256: str
    program_sha256: str  # instead, of the captured program
    definition_sha256: str  # instead, of the file that defines the network, and its weights
    device: dict[str, Any]  # kind, name, …; "missing": reason
    messages: list[str]
    warnings: list[str]
