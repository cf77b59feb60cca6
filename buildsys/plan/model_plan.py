"""Derived facts of one model and its engines, each computed once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from buildsys.manifest.shape_cases import example_dims
from buildsys.plan.action import FileRef, needs_of
from buildsys.plan.custom_operators import NO_OPERATORS, CustomOperators
from buildsys.plan.engine_typing import (
    EngineSpec,
    VersionOf,
    is_implicit,
    is_weak,
    toolchain_of,
    unknown_version,
    with_base_precision,
    with_typing,
)
from buildsys.plan.graph_points import (
    Graph,
    Spec,
    changes_golden,
    further_cases,
    graph_points,
    profile_values,
)
from buildsys.stages.table import CONVERT, PROGRAM, SEARCH, SIMPLIFY, target_of
from buildsys.system.backend_registry import describe_backend, find_package
from buildsys.system.weight_names import HUB, INDEX_SUFFIX

DataEntry = Mapping[str, Any]  # source of input values
ONNXRUNTIME = "onnxruntime"
FULL_PRECISION = "fp32"
QUANTIZED = ("int8", "fp8")  # precisions that need calibration
_INT4 = ("block_size", "symmetric", "accuracy_level", "exclude")  # fields of quantize_weights
_DYNAMIC = ("per_channel", "reduce_range", "exclude")
TORCH_BASELINES = ("torch", "torch_cuda_graph", "torch_compile")
_GPU_BASELINES = ("torch_cuda_graph",)
_BASELINE_PRECISIONS = ("fp32", "fp16", "bf16")
_SOURCE_LIBRARIES = {
    "torchvision": ("torchvision",),
    "timm": ("timm", "torchvision"),
    "transformers": ("transformers",),
    "exported_program": (),
    "python": (),
    "numpy": (),
}
# of a checkpoint of transformers; a missing one may appear
_CHECKPOINT_FILES = ("config.json", "model.safetensors", f"model{INDEX_SUFFIX}")


@dataclass(frozen=True)
class Conversion:
    """A graph in another precision than fp32."""

    model: str
    variant: str  # "fp16", "auto-fp16"; of an engine with its own limits "auto-fp16-NAME"
    precision: str
    tolerance: Mapping[str, Any]
    search: bool = False  # nodes stay in fp32 until the graph is within the limits
    # sections of the manifest for graphs of ONNX Runtime only: optimize, quantize_weights
    without_calibration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The converted graph."""
        return Graph(f"{self.model}/{CONVERT}/{self.variant}", self.target)

    @property
    def target(self) -> str:
        """The target that converts the graph."""
        return target_of(CONVERT, self.model, self.variant)

    @property
    def nodes(self) -> FileRef:
        """The nodes kept in fp32 by a search."""
        return FileRef(f"{self.model}/{SEARCH}/{self.variant}/nodes.json")

    @property
    def search_target(self) -> str:
        """The target that finds the nodes."""
        return target_of(SEARCH, self.model, self.variant)


class ModelPlan:
    """A model to plan. ``spec`` has the typing of its TensorRT engines decided."""

    def __init__(self, spec: Spec, version_of: VersionOf = unknown_version) -> None:
        given = spec["source"] or {}
        self.definition = given if "tensorrt" in given else None  # by hand
        if self.definition:
            spec = _of_definition(spec)
        self.spec = spec = with_typing(with_base_precision(_without_run_fields(spec)), version_of)
        self.name: str = spec["model"]
        # of the golden outputs
        source = self.definition["reference"] if self.definition else given
        self.has_network = bool(source)  # else it has commands only
        self.is_onnx = "onnx" in source
        self.is_torch = self.has_network and "numpy" not in source and not self.is_onnx
        self.on_gpu = source.get("device") == "cuda"  # the network, not its engines
        self.environment: tuple[str, ...] = ("torch", *(("gpu",) if self.on_gpu else ()))
        self.is_made = False
        self.case_values, self.exported, self.unsimplified, self.final = graph_points(spec)
        self.further = further_cases(spec, self.exported)
        self.further_names = [*self.further.get("sizes", ()), *self.further.get("values", ())]
        self.operators = CustomOperators(spec)
        # outputs made of unlike parts, before and after the steps on the simplified graph
        self.assembled = self.final_assembled = FileRef(f"{self.name}/simplify/assembled.json")
        self.final_assembled_target = target_of(SIMPLIFY, self.name)
        if changes_golden(self.final.steps):
            self.final_assembled = FileRef(f"{self.final.graph.folder}/assembled.json")
            self.final_assembled_target = self.final.graph.target
        data = {name: tensor["data"] for name, tensor in spec["inputs"].items()}
        # options to create and call the network; for PyTorch with the example
        self.network_options: dict[str, Any] = {
            "source": source,
            "inputs": self.exported.inputs,
            "data": data,
        }
        self.network_sources: tuple[str, ...] = ()
        if self.is_onnx:
            file, _, made_by = source["onnx"].rpartition(":")
            self.is_made = file.endswith(".py") and bool(made_by)  # by a callable
            self.network_sources = (file if self.is_made else source["onnx"],)
        # without the user's imports
        self.network_tools: tuple[str, ...] = ("python", "numpy") if self.is_made else ()
        self.network_code: tuple[str, ...] = ()
        weights = source.get("weights")
        # state dict files with their required digests
        self.weights = {weights["file"]: weights["sha256"]} if isinstance(weights, dict) else {}
        if folder := source.get("checkpoint"):
            files = (f"{folder.rstrip('/')}/{name}" for name in _CHECKPOINT_FILES)
            self.weights = dict.fromkeys(files)
        if "exported_program" in source:
            self.weights[source["exported_program"]] = None
        if isinstance(source.get("config"), str):
            self.weights[source["config"]] = None
        if self.has_network and not self.is_onnx:
            fields = ("shape", "dtype", "keyword")
            self.network_options = {
                "source": source,
                "example": example_dims(self.exported.dims),
                "inputs": {n: {f: t[f] for f in fields} for n, t in spec["inputs"].items()},
                "outputs": {
                    n: {f: t[f] for f in ("shape", "dtype", "key")}
                    for n, t in spec["outputs"].items()
                },
                "data": data,
            }
            if spec["call"]:
                self.network_options["call"] = spec["call"]
            if callable_name := source.get("python") or source.get("numpy"):
                self.network_sources = (callable_name.rpartition(":")[0],)
            self.network_sources += data_files(data.values())
            kind = next(kind for kind in source if kind in _SOURCE_LIBRARIES)
            self.network_code = (f"buildsys.models.sources.{kind}",)
            libraries = [*_SOURCE_LIBRARIES[kind], *image_tools(data.values())]
            if any(file.endswith((".safetensors", INDEX_SUFFIX)) for file in self.weights):
                libraries.append("safetensors")
            self.network_tools = ("python", "torch", "numpy", *dict.fromkeys(libraries))
            if not self.is_torch:
                self.environment, self.network_code = (), ("buildsys.models.numpy_function",)
                self.network_tools = ("python", "numpy", *image_tools(data.values()))
            # a commit of the Hub, in the options, identifies its files
            self.weights = {f: digest for f, digest in self.weights.items() if f[:5] != HUB}
        tensors = [*spec["inputs"].values(), *spec["outputs"].values()]
        tensors += [*self.unsimplified.inputs.values(), *self.final.inputs.values()]
        small = any((tensor["dtype"] or "").startswith(("float8", "float4")) for tensor in tensors)
        self.small_float_tools = ("ml_dtypes",) if small else ()
        # the source lines of exported nodes
        origins = FileRef(f"{self.name}/export/origins.json", optional=True)
        self.origins = {} if self.is_onnx or self.definition else {"origins": origins}
        self.program = FileRef(f"{self.name}/program/program.pt2")
        self.program_origins = FileRef(f"{self.name}/program/origins.json", optional=True)
        # PyTorch does the same work as the engines, unless the graph is cut or takes other inputs
        steps = [*self.unsimplified.steps, *self.final.steps]
        changed = any("cut" in step or step.get("inputs") is not None for step in steps)
        self.has_torch_baselines = self.is_torch and not changed
        # the arrays that a network defined by hand gets
        self.definition_weights: dict[str, FileRef] = {}
        if self.definition and self.definition["weights"] is None and self.is_torch:
            file = FileRef(f"{self.name}/reference/weights.npz")
            self.definition_weights = {"weights": file}
        self.engines = [EnginePlan(self, engine) for engine in spec["engines"]]
        self.needs_calibration = any(e.needs_ranges or e.calibrates for e in self.engines)

    def fields(
        self, stage: str, variant: str = "", engine: EngineSpec | None = None
    ) -> dict[str, Any]:
        """Return the name, needs and time limit of an action."""
        return {
            "target": target_of(stage, self.name, variant),
            "stage": stage,
            "model": self.name,
            "variant": variant,
            "needs": needs_of((engine or {}).get("needs") or self.spec.get("needs")),
            "timeout_s": self.spec["timeout"].get(stage),
        }

    def calibrated(self, *roles: str) -> dict[str, FileRef]:
        """Return outputs of the calibration: ``batches`` and ``ranges``."""
        names = {"batches": "batches.npz", "ranges": "ranges.json"}
        return {role: FileRef(f"{self.name}/calibrate/{names[role]}") for role in roles}

    def conversion(self, precision: str) -> Conversion:
        """Return the conversion of all nodes to a precision other than fp32."""
        return Conversion(self.name, precision, precision, self.spec["verify"][precision])

    @property
    def conversions(self) -> tuple[Conversion, ...]:
        """The conversions for engines and their baselines, each once."""
        found = [engine.conversion for engine in self.engines if engine.conversion]
        for engine in self.engines:
            if engine.baseline_graph and engine.baseline_precision != FULL_PRECISION:
                found.append(self.conversion(engine.baseline_precision))
        return tuple({each.variant: each for each in found}.values())

    @property
    def searches(self) -> tuple[Conversion, ...]:
        """The conversions completed by a search, each once."""
        found = [engine.search for engine in self.engines if engine.search]
        return tuple({each.variant: each for each in found}.values())


class EnginePlan:
    """An engine of a model to plan."""

    def __init__(self, model: ModelPlan, spec: EngineSpec) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.backend: str = spec["backend"]
        self.precision: str = spec["precision"]
        self.tolerance = spec["tolerance"] or model.spec["verify"][self.precision]
        self.description = description = describe_backend(self.backend)
        # the builder itself calibrates int8
        self.calibrates = is_implicit(spec) or description.quantizes(spec)
        self.on_gpu = description.runs_on_gpu(spec)
        self.server: Literal["light", "torch"]
        self.server = "torch" if "torch" in description.libraries else "light"
        self.devices = ("gpu",) if self.on_gpu else ("cpu",)
        self.environment = (*description.environment, *(("gpu",) if self.on_gpu else ()))
        self.toolchain = toolchain_of(model.spec, spec)
        cuda = ("cuda-bindings",) if self.on_gpu else ()
        self.toolchain_tools = ("python", "numpy", *cuda) if self.toolchain else ()
        libraries = (description.distribution, *description.run_tools(spec))
        self.run_tools = (*libraries, *model.small_float_tools)
        package = find_package(self.backend)
        module = f"{package.module if package else self.backend}.backend"
        is_ours = package is not None and not package.owner
        self.backend_code = (module,) if is_ours else ()
        self.backend_packages = () if is_ours else (module,)
        unused = {"name", "tolerance", "required", "needs", "gates"}
        unused |= set() if self.toolchain else {"toolchain"}
        self.gates = spec.get("gates") or model.spec.get("gates")
        if self.gates and self.gates["engine"] == self.name:  # gates of the model
            self.gates = None
        self.options = {field: value for field, value in spec.items() if field not in unused}
        folder, engine_file = f"{model.name}/engine/{self.name}", description.engine_file
        data_file = description.data_file or f"{engine_file}.data"
        self.files = {
            "engine": FileRef(f"{folder}/{engine_file}", optional=True),
            "engine.data": FileRef(f"{folder}/{data_file}", optional=True),
            **{
                f"engine.{name}": FileRef(f"{folder}/{name}", optional=True)
                for name in description.further_files(spec)
            },
        }
        takes_program = description.takes_program
        self.loaded_operators = NO_OPERATORS if takes_program else model.operators.loaded_use(spec)
        # the graph has the types of the engine's precision
        typed = not is_weak(spec) or spec.get("quantization") == "explicit"
        typed = typed and not (description.takes_float32 or takes_program or model.definition)
        self.search: Conversion | None = None
        if spec.get("auto"):
            own = self.tolerance != model.spec["verify"][self.precision]
            variant = f"auto-{self.precision}{f'-{self.name}' if own else ''}"
            limits = self.tolerance
            self.search = Conversion(model.name, variant, self.precision, limits, search=True)
            # only the typed graph has quantizers, and exceptions from a precision of all layers
            typed = typed or self.precision in QUANTIZED or description.takes_float32
        self.conversion: Conversion | None = None  # that it is built from
        without_calibration = _without_calibration(model.spec, spec)
        self.quantizes_weights = "quantize_weights" in without_calibration
        self.needs_ranges = self.precision in QUANTIZED and not (
            self.quantizes_weights or model.definition
        )
        if without_calibration:
            self.conversion = Conversion(
                model.name,
                _variant(spec),
                self.precision,
                model.spec["verify"][self.precision],
                without_calibration=without_calibration,
            )
        elif typed and self.precision != FULL_PRECISION:
            self.conversion = self.search or model.conversion(self.precision)
        final = model.final
        graph = self.conversion.graph if self.conversion else final.graph
        # what it is built from, and the target that writes it
        self.source, self.source_target = graph.files(), graph.target
        if takes_program:
            self.source = {"program": model.program}
            self.source_target = target_of(PROGRAM, model.name)
        if model.definition:
            self.source = model.definition_weights
            self.source_target = final.golden_target if self.source else ""
        # of the check, including the engine's explicit profiles
        own = list(profile_values(model.spec, [spec], final.inputs, final.dims).values())
        wanted = model.spec["verify"]["cases"]
        self.cases = final.cases([c for c, v in final.values.items() if c in wanted or v in own])
        self.baselines = [  # without impossible or unfair ones
            name
            for name in model.spec["bench"]["baselines"]
            if (self.on_gpu or name not in _GPU_BASELINES)
            and (model.has_torch_baselines or name not in TORCH_BASELINES)
            and not (model.definition and name == ONNXRUNTIME)
            and (self.on_gpu or not model.on_gpu or name not in TORCH_BASELINES)
        ]
        self.baseline_precision: str = model.spec["bench"]["baseline_precision"]
        if self.baseline_precision == "auto":
            own_precision = self.precision if self.precision in _BASELINE_PRECISIONS else "fp16"
            self.baseline_precision = own_precision if self.on_gpu else FULL_PRECISION
        full = self.baseline_precision == FULL_PRECISION
        graph = final.graph if full else model.conversion(self.baseline_precision).graph
        self.baseline_graph = graph if ONNXRUNTIME in self.baselines else None  # in ONNX Runtime

    def further_cases(self, model: ModelPlan) -> dict[str, Any]:
        """Return the further cases to verify with the shapes of the inputs, or {}.

        Extreme values exceed the range of narrow floats, and the ranges of a calibration are those
        of its data: the limits of these engines are for ordinary values.
        """
        names = model.further_names if model.final.has_further else []
        if self.precision != FULL_PRECISION:
            names = [name for name in names if name.startswith(("drawn", "seed"))]
        if not names or self.precision in QUANTIZED or self.calibrates:
            return {}
        inputs = model.final.inputs.items()
        return {"cases": names, "shapes": {name: tensor["shape"] for name, tensor in inputs}}


def _without_calibration(spec: Spec, engine: EngineSpec) -> dict[str, Any]:
    """Return the options of a graph that is fused or has quantized weights, or {}."""
    found: dict[str, Any] = {}
    if engine.get("optimized"):
        found["optimize"] = spec["optimize"]
    fields: tuple[str, ...] = _INT4 if engine["precision"] == "int4" else ()
    fields = _DYNAMIC if engine.get("quantization") == "dynamic" else fields
    if fields:
        section = spec["quantize_weights"]
        found["quantize_weights"] = {field: section[field] for field in fields}
    return found


def _variant(engine: EngineSpec) -> str:
    """Return the name of such a graph, as in ``optimized-dynamic-int8``."""
    parts = (
        "optimized" if engine.get("optimized") else "",
        "dynamic" if engine.get("quantization") == "dynamic" else "",
        "" if engine["precision"] == FULL_PRECISION else engine["precision"],
    )
    return "-".join(filter(None, parts))


def _of_definition(spec: Spec) -> Spec:
    """Return the manifest of a network that itself has the quantizers of int8 and fp8 engines."""
    engines = []
    for engine in spec["engines"]:
        if engine["precision"] in QUANTIZED and "quantization" in engine:
            engine = {**engine, "quantization": "explicit"}
        engines.append(engine)
    return {**spec, "engines": engines}


def _without_run_fields(spec: Spec) -> Spec:
    """Return the manifest without fields of `run`, for no key to contain them."""
    return {
        **spec,
        **{
            section: {
                name: {field: value for field, value in tensor.items() if field != of_run}
                for name, tensor in spec[section].items()
            }
            for section, of_run in (("inputs", "preprocess"), ("outputs", "labels"))
        },
    }


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
