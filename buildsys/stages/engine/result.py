"""The result file of the engine stage: ``engine.json``, documented in docs/engine_json.md."""

from typing import Any

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.typed_dict import TypedDict


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


class EngineResult(ResultHeader, total=False):
    """The built engine. Fields unknown to a backend are left out."""

    backend: str
    settings: dict[str, Any]
    profiles: list[dict[str, dict[str, list[int]]]]  # input -> min, opt, max
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    formats: dict[str, str]
    layers: dict[str, int]  # by kind
    engine_layers: dict[str, int]
    precision_shares: dict[str, dict[str, float]]  # of layers, time, weights: type -> share
    int8_layers: dict[str, int]  # int8, all: convolutions and matrix products, if one is in int8
    slowest_layers: list[SlowLayer]  # only TensorRT; bench times the layers of ONNX Runtime
    layer_nodes: list[SlowLayer]  # only TensorRT: all layers with all their nodes
    source_nodes: dict[str, list[str]]  # changed node of the engine -> nodes of the ONNX graph
    placement: dict[str, dict[str, Any]]  # unless all nodes run on the CPU
    provider_libraries: dict[str, str]  # distribution -> version
    precision_unknown: str
    precision_of: str
    device_memory_bytes: int
    delegated: dict[str, Any]  # ExecuTorch: share, operators, portable
    weights: dict[str, Any]  # of a Core ML package
    specification: int  # Core ML's
    systems: str  # the oldest that run the engine
    # input -> size, [min, max] or [min, max, name] of each axis
    ranges: dict[str, list[int | list[int | str]]]
    images: dict[str, dict[str, str]]  # inputs that take raw images -> color, steps
    operators: dict[str, str]  # custom operator -> kind and file
    plugins: list[dict[str, Any]]
    calibration: dict[str, str]  # int8, by TensorRT itself
    build_seconds: float
    phases: dict[str, float]
    timing_cache: dict[str, Any]
    built_with: dict[str, Any]  # versions of libraries, and the device
    portability: dict[str, Any]
    trtexec: dict[str, Any]  # command, and fields without_flag
    refitted_from: dict[str, Any]  # instead of a build
    not_refitted: str  # why earlier engines could not be refitted
    refit_basis: dict[str, Any]  # digests of the graph's skeleton and of its weights
    files: dict[str, dict[str, Any]]  # name -> bytes and sha256
    engine_sha256: str
    engine_bytes: int
    onnx_sha256: str
    program_sha256: str  # instead, of the captured program
    definition_sha256: str  # instead, of the file that defines the network, and its weights
    device: dict[str, Any]  # kind, name, …; "missing": reason
    messages: list[str]
    warnings: list[str]
