"""Derived facts of one model and its engines, each computed once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from buildsys.manifest.shape_cases import Dims, example_dims
from buildsys.plan.action import FileRef
from buildsys.plan.custom_operators import CustomOperators, OperatorUse
from buildsys.plan.engine_typing import (
    EngineSpec,
    VersionOf,
    is_explicit,
    is_implicit,
    is_weak,
    toolchain_of,
    unknown_version,
    with_typing,
)
from buildsys.plan.graph_points import Graph, Spec, graph_points, profile_values

DataEntry = Mapping[str, Any]  # source of input values
ONNXRUNTIME = "onnxruntime"
FULL_PRECISION = "fp32"
QUANTIZED = ("int8", "fp8")  # precisions that need calibration
TORCH_BASELINES = ("torch", "torch_cuda_graph", "torch_compile")
_GPU_BASELINES = ("torch_cuda_graph",)
_BASELINE_PRECISIONS = ("fp32", "fp16", "bf16")
_CUDA_LIBRARIES = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cublas-cu12", "nvidia-cublas")


class ModelPlan:
    """A model to plan. ``spec`` has the typing of its TensorRT engines decided."""

    def __init__(self, spec: Spec, version_of: VersionOf = unknown_version) -> None:
        self.spec = with_typing(spec, version_of)
        self.name: str = spec["model"]
        self.is_onnx = "onnx" in spec["source"]
        self.case_values, self.exported, self.unsimplified, self.final = graph_points(self.spec)
        self.operators = CustomOperators(self.spec)
        self.engines = [EnginePlan(self, engine) for engine in self.spec["engines"]]

    def fields(self, stage: str, variant: str = "") -> dict[str, Any]:
        """Return the name and time limit of an action."""
        return {
            "target": ":".join((stage, self.name, variant)).rstrip(":"),
            "stage": stage,
            "model": self.name,
            "variant": variant,
            "timeout_s": self.spec["timeout"].get(stage),
        }

    @cached_property
    def network_options(self) -> dict[str, Any]:
        """Options to create and call the network; for PyTorch with the example."""
        spec = self.spec
        if self.is_onnx:
            return {"source": spec["source"], "inputs": self.exported.inputs}
        inputs = {
            name: {field: tensor[field] for field in ("shape", "dtype", "keyword")}
            for name, tensor in spec["inputs"].items()
        }
        example = example_dims(self.exported.dims)
        source, outputs = spec["source"], spec["outputs"]
        return {"source": source, "example": example, "inputs": inputs, "outputs": outputs}

    @cached_property
    def network_sources(self) -> tuple[str, ...]:
        """The user's files with the network."""
        source = self.spec["source"]
        files = [source["python"].rpartition(":")[0]] if "python" in source else []
        return (*files, *([source["onnx"]] if self.is_onnx else []))

    @cached_property
    def network_tools(self) -> tuple[str, ...]:
        """Libraries to create and run the network, without the user's imports."""
        if self.is_onnx:
            return ()
        torchvision = ("torchvision",) if "torchvision" in self.spec["source"] else ()
        return ("python", "torch", "numpy", *torchvision)

    @cached_property
    def weights(self) -> dict[str, str | None]:
        """State dict files with their required digests."""
        weights = self.spec["source"].get("weights")
        return {weights["file"]: weights["sha256"]} if isinstance(weights, dict) else {}

    @cached_property
    def small_float_tools(self) -> tuple[str, ...]:
        """The library for 8 and 4 bit floats, if needed."""
        tensors = [*self.spec["inputs"].values(), *self.spec["outputs"].values()]
        tensors += [*self.unsimplified.inputs.values(), *self.final.inputs.values()]
        small = any((tensor["dtype"] or "").startswith(("float8", "float4")) for tensor in tensors)
        return ("ml_dtypes",) if small else ()

    @cached_property
    def origins(self) -> dict[str, FileRef]:
        """The file with the source lines of exported nodes, by role."""
        path = f"{self.name}/export/origins.json"
        return {} if self.is_onnx else {"origins": FileRef(path, optional=True)}

    @cached_property
    def needs_calibration(self) -> bool:
        """True if some engine needs the ranges of tensors."""
        return any(e.precision in QUANTIZED or e.calibrates for e in self.engines)

    def calibrated(self, *roles: str) -> dict[str, FileRef]:
        """Return outputs of the calibration: ``batches`` and ``ranges``."""
        names = {"batches": "batches.npz", "ranges": "ranges.json"}
        return {role: FileRef(f"{self.name}/calibrate/{names[role]}") for role in roles}

    def converted(self, precision: str) -> Graph:
        """Return the graph of a precision other than fp32."""
        return Graph(f"{self.name}/convert/{precision}", f"convert:{self.name}:{precision}")

    @cached_property
    def has_torch_baselines(self) -> bool:
        """True if PyTorch does the same work: no cut, no freed dimensions."""
        steps = [*self.unsimplified.steps, *self.final.steps]
        return not self.is_onnx and not any("cut" in s or "free_dims" in s for s in steps)


class EnginePlan:
    """An engine of a model to plan."""

    def __init__(self, model: ModelPlan, spec: EngineSpec) -> None:
        self.model = model
        self.spec = spec
        self.name: str = spec["name"]
        self.backend: str = spec["backend"]
        self.precision: str = spec["precision"]
        self.calibrates = is_implicit(spec)  # the builder itself calibrates int8
        self.on_gpu = self.backend != ONNXRUNTIME or spec["provider"] != "cpu"
        self.devices = ("gpu",) if self.on_gpu else ("cpu",)
        runtime = ("onnxruntime",) if self.backend == ONNXRUNTIME else ()
        self.environment = (*runtime, *(("gpu",) if self.on_gpu else ()))
        self.toolchain = toolchain_of(model.spec, spec)
        cuda = ("cuda-bindings",) if self.on_gpu else ()
        self.toolchain_tools = ("python", "numpy", *cuda) if self.toolchain else ()
        self.backend_code = f"buildsys.backends.{self.backend}.backend"
        unused = ("name", "tolerance", "required", *(() if self.toolchain else ("toolchain",)))
        self.options = {field: value for field, value in spec.items() if field not in unused}
        suffix = "onnx" if self.backend == ONNXRUNTIME else "engine"
        path = f"{model.name}/engine/{self.name}/engine.{suffix}"
        self.files = {
            "engine": FileRef(path, optional=True),
            "engine.data": FileRef(f"{path}.data", optional=True),
        }

    @cached_property
    def is_converted(self) -> bool:
        """True if the graph has the types of the engine's precision."""
        weak = is_weak(self.spec) and not is_explicit(self.spec)
        return self.precision != FULL_PRECISION and not weak

    @cached_property
    def graph(self) -> Graph:
        """The graph to build from."""
        model = self.model
        return model.converted(self.precision) if self.is_converted else model.final.graph

    @cached_property
    def cases(self) -> dict[str, Dims]:
        """Shape cases of the check, including the engine's explicit profiles."""
        spec, final = self.model.spec, self.model.final
        own = list(profile_values(spec, [self.spec], final.inputs, final.dims).values())
        wanted = spec["verify"]["cases"]
        wanted = [case for case, v in final.values.items() if case in wanted or v in own]
        return final.cases(wanted)

    @cached_property
    def loaded_operators(self) -> OperatorUse:
        """Custom operators loaded with the engine."""
        return self.model.operators.loaded_use(self.spec)

    @cached_property
    def run_tools(self) -> tuple[str, ...]:
        """Libraries to run the engine."""
        cuda = _CUDA_LIBRARIES if self.spec.get("provider") == "cuda" else ()
        return (self.backend, *cuda, *self.model.small_float_tools)

    @cached_property
    def baselines(self) -> list[str]:
        """Baselines of the benchmark, without impossible or unfair ones."""
        return [
            name
            for name in self.model.spec["bench"]["baselines"]
            if (self.on_gpu or name not in _GPU_BASELINES)
            and (self.model.has_torch_baselines or name not in TORCH_BASELINES)
        ]

    @cached_property
    def baseline_precision(self) -> str:
        """Precision of the baselines.

        On a GPU it defaults to the engine's, or to fp16 for an engine below 16 bits.
        """
        configured: str = self.model.spec["bench"]["baseline_precision"]
        if configured != "auto":
            return configured
        if not self.on_gpu:
            return FULL_PRECISION
        return self.precision if self.precision in _BASELINE_PRECISIONS else "fp16"

    @cached_property
    def baseline_graph(self) -> Graph | None:
        """The graph of ONNX Runtime as a baseline."""
        if ONNXRUNTIME not in self.baselines:
            return None
        if self.baseline_precision == FULL_PRECISION:
            return self.model.final.graph
        return self.model.converted(self.baseline_precision)


def data_files(entries: Iterable[DataEntry | None]) -> tuple[str, ...]:
    """Return the user's files in ``entries``, image folders with a slash."""
    files = []
    for entry in entries:
        data = entry or {}
        files += [data["npz"]] if data.get("npz") else []
        files += [data["python"].rpartition(":")[0]] if data.get("python") else []
        files += [f"{data['images'].rstrip('/')}/"] if data.get("images") else []
    return tuple(dict.fromkeys(files))


def image_tools(entries: Iterable[DataEntry | None]) -> tuple[str, ...]:
    """Return the library for images, if any entry has images."""
    return ("pillow",) if any("images" in (entry or ()) for entry in entries) else ()
