"""Derived facts of one model and its engines, each computed once."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from buildsys.manifest.backend_choices import QUANTIZED, has_quantizers
from buildsys.manifest.shape_cases import Dims, images_of
from buildsys.plan.action import RESULT, Action, FileRef, needs_of
from buildsys.plan.custom_operators import NO_OPERATORS, CustomOperators, PlannedOperator
from buildsys.plan.engine_typing import (
    EngineSpec,
    VersionOf,
    decide_engine,
    is_implicit,
    is_weak,
    toolchain_of,
    unknown_version,
)
from buildsys.plan.graph_points import (
    Graph,
    LoweredGraph,
    PlannedConversion,
    Spec,
    further_cases,
    golden_samples,
    graph_points,
    profile_values,
)
from buildsys.plan.network import PlannedNetwork
from buildsys.stages.table import PREPROCESS, PROGRAM, stage_info, target_of
from buildsys.system.backend_registry import describe_backend, find_package

ONNXRUNTIME = "onnxruntime"
FULL_PRECISION = "fp32"
_INT4 = ("block_size", "symmetric", "accuracy_level", "exclude")  # fields of quantize_weights
_DYNAMIC = ("per_channel", "reduce_range", "exclude")
_LISTS = ("sources", "after", "code", "tools", "environment")  # fields of an action
_IMPORT_TORCH = frozenset(("torch", "nvidia-modelopt"))  # distributions
_GPU_BASELINES = ("torch_cuda_graph", "torch_tensorrt")
TORCH_BASELINES = ("torch", "torch_compile", *_GPU_BASELINES)
_BASELINE_PRECISIONS = ("fp32", "fp16", "bf16")


class ModelPlan:
    """A model to plan. ``spec`` has the typing of its TensorRT engines decided."""

    def __init__(self, spec: Spec, version_of: VersionOf = unknown_version) -> None:
        written = spec["source"] or {}
        self.definition = written if "tensorrt" in written else None  # by hand
        engines = [decide_engine(spec, engine, version_of) for engine in spec["engines"]]
        inputs, outputs = spec["inputs"].items(), spec["outputs"].values()
        self.preprocess = {name: t["preprocess"] for name, t in inputs if t.get("preprocess")}
        self.images = images_of(spec)  # inputs that engines preprocess
        labels = (output.get("labels") or {} for output in outputs)
        self.classes: list[str] = next((e["names"] for e in labels if "names" in e), [])
        points = graph_points({**spec, "engines": engines})
        self.case_values, self.exported, self.unsimplified, self.final, self.served = points
        self.spec = spec = {**_without_run_fields(spec), "engines": engines}
        self.name: str = spec["model"]
        source = self.definition["reference"] if self.definition else written
        self.has_network = bool(source)  # else it has commands only
        self.network = PlannedNetwork(spec, source, self.exported)
        self.operators = CustomOperators(spec)
        self.further = further_cases(spec, self.exported)
        self.samples = golden_samples(spec, self.exported, self.final)
        kinds = ("sizes", "values", "golden")
        self.further_names = [name for kind in kinds for name in self.further.get(kind, ())]
        self.program = FileRef(f"{self.name}/program/program.pt2")
        self.program_origins = FileRef(f"{self.name}/program/origins.json", optional=True)
        self.engines = [EnginePlan(self, engine, version_of) for engine in spec["engines"]]

    @cached_property
    def small_float_tools(self) -> tuple[str, ...]:
        """The library for 8-bit and 4-bit floats, if a tensor has them."""
        spec = self.spec
        tensors = [*spec["inputs"].values(), *spec["outputs"].values()]
        tensors += [*self.unsimplified.inputs.values(), *self.final.inputs.values()]
        small = any((tensor["dtype"] or "").startswith(("float8", "float4")) for tensor in tensors)
        return ("ml_dtypes",) if small else ()

    @property
    def origins(self) -> dict[str, FileRef]:
        """The source lines of exported nodes."""
        if self.network.is_onnx or self.definition:
            return {}
        return {"origins": FileRef(f"{self.name}/export/origins.json", optional=True)}

    @property
    def definition_weights(self) -> dict[str, FileRef]:
        """The arrays that a network defined by hand gets from its reference."""
        is_own = self.definition is None or self.definition["weights"] is not None
        if is_own or not self.network.is_torch:
            return {}
        return {"weights": FileRef(f"{self.name}/reference/weights.npz")}

    @property
    def has_torch_baselines(self) -> bool:
        """True if PyTorch does the same work as the engines.

        It does not if the graph is cut or takes other inputs, such as raw images.
        """
        steps = (*self.unsimplified.steps, *self.final.steps)
        changed = any("cut" in step or step.get("inputs") is not None for step in steps)
        return self.network.is_torch and not (changed or self.images)

    @property
    def needs_calibration(self) -> bool:
        """True if an engine needs ranges of tensors, or calibrates itself."""
        return any(engine.needs_ranges or engine.calibrates for engine in self.engines)

    def action(
        self,
        stage: str,
        result: str,
        variant: str = "",
        *,
        owner: Mapping[str, Any] | None = None,
        runs_network: bool = False,
        operators: PlannedOperator = NO_OPERATORS,
        options: Mapping[str, Any],
        inputs: Mapping[str, FileRef] | None = None,
        outputs: Mapping[str, FileRef] | None = None,
        **fields: Any,
    ) -> Action:
        """Make the action of a stage, with its name, needs and time limit.

        ``result`` is its result file below the model's folder, ``owner`` the engine or command
        with needs of its own. What the network and ``operators`` read is added.
        """
        lists = {name: [*fields.pop(name, ())] for name in _LISTS}
        if network := self.network if runs_network else None:
            for name in ("sources", "code", "tools", "environment"):
                lists[name] = [*getattr(network, name), *lists[name]]
            fields["weights"] = network.weights
            fields["alone_on_gpu"] = network.on_gpu or fields.get("alone_on_gpu", False)
        lists["sources"] += operators.sources
        lists["after"] = [*filter(None, lists["after"]), *operators.after]
        lists["code"].insert(0, f"{stage_info(stage).package}.stage")
        return Action(
            target=target_of(stage, self.name, variant),
            stage=stage,
            model=self.name,
            variant=variant,
            options={**options, **operators.options},
            inputs={**(inputs or {}), **operators.inputs},
            outputs={**(outputs or {}), RESULT: FileRef(f"{self.name}/{result}")},
            **{
                "needs": needs_of((owner or {}).get("needs") or self.spec.get("needs")),
                "timeout_s": self.spec["timeout"].get(stage),
                "server": "light" if _IMPORT_TORCH.isdisjoint(lists["tools"]) else "torch",
                **fields,
                **{name: tuple(dict.fromkeys(entries)) for name, entries in lists.items()},
            },
        )

    def calibrated(self, *roles: str) -> dict[str, FileRef]:
        """Locate outputs of the calibration: ``batches`` and ``ranges``."""
        names = {"batches": "batches.npz", "ranges": "ranges.json"}
        return {role: FileRef(f"{self.name}/calibrate/{names[role]}") for role in roles}

    def conversion(self, precision: str) -> PlannedConversion:
        """Describe the conversion of all nodes to a precision other than fp32."""
        return PlannedConversion(self.name, precision, precision, self.spec["verify"][precision])

    @property
    def conversions(self) -> tuple[PlannedConversion, ...]:
        """The conversions for engines and their baselines, each once."""
        conversions = [engine.conversion for engine in self.engines if engine.conversion]
        for engine in self.engines:
            if engine.baseline_graph and engine.baseline_precision != FULL_PRECISION:
                conversions.append(self.conversion(engine.baseline_precision))
        return tuple({graph.variant: graph for graph in conversions}.values())

    @property
    def lowered_graphs(self) -> tuple[LoweredGraph, ...]:
        """The graphs in older opsets, each once."""
        lowered = [engine.lowered for engine in self.engines if engine.lowered]
        return tuple({graph.variant: graph for graph in lowered}.values())

    def preprocessed(self, variant: str) -> Graph:
        """Locate the graph of a variant that takes raw images."""
        target = target_of(PREPROCESS, self.name, variant)
        return Graph(f"{self.name}/{PREPROCESS}/{variant}", target)

    @property
    def searches(self) -> tuple[PlannedConversion, ...]:
        """The conversions completed by a search, each once."""
        searches = [engine.search for engine in self.engines if engine.search]
        return tuple({search.variant: search for search in searches}.values())


class EnginePlan:
    """An engine of a model to plan."""

    def __init__(self, model: ModelPlan, spec: EngineSpec, version_of: VersionOf) -> None:
        self.model = model
        self.spec = spec
        self.name: str = spec["name"]
        self.backend: str = spec["backend"]
        self.precision: str = spec["precision"]
        self.tolerance = spec["tolerance"] or model.spec["verify"][self.precision]
        self.description = description = describe_backend(self.backend)
        # the builder itself calibrates int8
        self.calibrates = is_implicit(spec) or description.quantizes(spec)
        self.on_gpu = description.runs_on_gpu(spec)
        self.devices = ("gpu",) if self.on_gpu else ("cpu",)
        self.environment = (*description.environment, *(("gpu",) if self.on_gpu else ()))
        is_torch = "torch" in description.libraries
        self.server: Literal["light", "torch"] = "torch" if is_torch else "light"
        self.toolchain = toolchain_of(model.spec, spec)
        versions = description.newest_graphs
        major = version_of(self.toolchain).partition(".")[0] if versions else ""
        self.newest_graph = versions.get(major)
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
        self.options = {field: value for field, value in spec.items() if field not in unused}
        self.gates = spec.get("gates") or model.spec.get("gates")
        if self.gates and self.gates["engine"] == self.name:  # gates of the model
            self.gates = None
        self._own_variant, self.without_calibration = _without_calibration(model.spec, spec)
        self.quantizes_weights = "quantize_weights" in self.without_calibration

    def action(self, stage: str, result: str, **fields: Any) -> Action:
        """Make the action of a stage that builds or runs the engine."""
        return self.model.action(
            stage,
            result,
            self.name,
            **{
                "owner": self.spec,
                "code": self.backend_code,
                "packages": self.backend_packages,
                "toolchain": self.toolchain,
                "devices": self.devices,
                "environment": self.environment,
                "server": self.server,
                "alone_on_gpu": self.on_gpu,
                **fields,
            },
        )

    @cached_property
    def files(self) -> dict[str, FileRef]:
        """The engine's files by role."""
        folder = f"{self.model.name}/engine/{self.name}"
        engine_file = self.description.engine_file
        names = {
            "engine": engine_file,
            "engine.data": self.description.data_file or f"{engine_file}.data",
            **{f"engine.{name}": name for name in self.description.further_files(self.spec)},
        }
        return {role: FileRef(f"{folder}/{name}", optional=True) for role, name in names.items()}

    @cached_property
    def loaded_operators(self) -> PlannedOperator:
        """Custom operators for running the engine."""
        takes_program = self.description.takes_program
        return NO_OPERATORS if takes_program else self.model.operators.loaded_use(self.spec)

    @property
    def needs_ranges(self) -> bool:
        """True if its graph has quantizers."""
        has_own = self.quantizes_weights or self.model.definition or self.spec.get("quantized")
        return self.precision in QUANTIZED and not has_own

    @cached_property
    def search(self) -> PlannedConversion | None:
        """The conversion that a search completes, if its precision is ``auto``."""
        if not self.spec.get("auto"):
            return None
        is_own = self.tolerance != self.model.spec["verify"][self.precision]
        variant = f"auto-{self.precision}{f'-{self.name}' if is_own else ''}"
        names = self.model.name, variant, self.precision
        by_metric = self.model.spec["search"]["limit"] == "metric"
        return PlannedConversion(*names, self.tolerance, search=True, by_metric=by_metric)

    @cached_property
    def conversion(self) -> PlannedConversion | None:
        """The conversion whose graph it is built from, None for the fp32 graph."""
        if self.without_calibration:
            limits = self.model.spec["verify"][self.precision]
            names = self.model.name, self._own_variant, self.precision, limits
            return PlannedConversion(*names, without_calibration=self.without_calibration)
        if not self._reads_types or self.precision == FULL_PRECISION or "quantized" in self.spec:
            return None
        return self.search or self.model.conversion(self.precision)

    @property
    def _reads_types(self) -> bool:
        """True if the graph has the types of the engine's precision."""
        description, spec = self.description, self.spec
        # only the typed graph has quantizers, and exceptions from a precision of all layers
        if self.search and (self.precision in QUANTIZED or description.takes_float32):
            return True
        is_typed = not is_weak(spec) or spec.get("quantization") == "explicit"
        reads_others = description.takes_float32 or description.takes_program
        return is_typed and not (reads_others or self.model.definition)

    @property
    def source(self) -> dict[str, FileRef]:
        """What it is built from."""
        if self.model.definition:
            return self.model.definition_weights
        if self.description.takes_program:
            return {"program": self.model.program}
        return self._graph.files()

    @property
    def source_target(self) -> str:
        """The target that writes what it is built from, "" if there is none."""
        if self.model.definition:
            return self.model.final.golden_target if self.source else ""
        if self.description.takes_program:
            return target_of(PROGRAM, self.model.name)
        return self._graph.target

    @property
    def _graph(self) -> Graph:
        if self.model.images:
            return self.model.preprocessed(self.plain_graph[0])
        return self.plain_graph[1]

    @property
    def plain_graph(self) -> tuple[str, Graph]:
        """Its graph before the preprocessing of images, with the variant."""
        if self.lowered:
            return self.lowered.variant, self.lowered.graph
        variant = self.conversion.variant if self.conversion else FULL_PRECISION
        return variant, self._own_graph

    @property
    def _own_graph(self) -> Graph:
        return self.conversion.graph if self.conversion else self.model.final.graph

    @cached_property
    def lowered(self) -> LoweredGraph | None:
        """Its graph in an older opset, unless its library reads the exporter's."""
        model, conversion = self.model, self.conversion
        if not self.newest_graph or model.definition:
            return None
        opset, ir_version = self.newest_graph
        steps = (*model.unsimplified.steps, *model.final.steps)  # they may raise it
        if not (model.network.is_onnx or steps or model.spec["export"]["opset"] > opset):
            return None
        variant = f"{conversion.variant}-opset{opset}" if conversion else f"opset{opset}"
        return LoweredGraph(self._own_graph, variant, opset, ir_version)

    @cached_property
    def cases(self) -> dict[str, Dims]:
        """The cases of its check, including those of its explicit profiles."""
        model, served = self.model, self.model.served
        own = list(profile_values(model.spec, [self.spec], served.inputs, served.dims).values())
        names = model.spec["verify"]["cases"]
        return served.cases([c for c, v in served.values.items() if c in names or v in own])

    @cached_property
    def baselines(self) -> list[str]:
        """The baselines of its benchmark, without impossible or unfair ones."""
        torch = self.model.has_torch_baselines and (self.on_gpu or not self.model.network.on_gpu)
        return [
            name
            for name in self.model.spec["bench"]["baselines"]
            if (self.on_gpu or name not in _GPU_BASELINES)
            and (torch or name not in TORCH_BASELINES)
            and not ((self.model.definition or self.model.images) and name == ONNXRUNTIME)
        ]

    @property
    def baseline_precision(self) -> str:
        """The precision of its baselines."""
        precision: str = self.model.spec["bench"]["baseline_precision"]
        if precision != "auto":
            return precision
        if has_quantizers(self.model.spec):
            return FULL_PRECISION
        own = self.precision if self.precision in _BASELINE_PRECISIONS else "fp16"
        return own if self.on_gpu else FULL_PRECISION

    @property
    def baseline_graph(self) -> Graph | None:
        """The graph of the ONNX Runtime baseline."""
        if ONNXRUNTIME not in self.baselines:
            return None
        if self.baseline_precision == FULL_PRECISION:
            return self.model.final.graph
        return self.model.conversion(self.baseline_precision).graph


def _without_calibration(spec: Spec, engine: EngineSpec) -> tuple[str, dict[str, Any]]:
    """Name a graph that is fused or has quantized weights, and choose its options, or "" and {}.

    A name is ``optimized-dynamic-int8``.
    """
    options: dict[str, Any] = {}
    is_dynamic, precision = engine.get("quantization") == "dynamic", engine["precision"]
    if engine.get("optimized"):
        options["optimize"] = spec["optimize"]
    if fields := _DYNAMIC if is_dynamic else _INT4 if precision == "int4" else ():
        section = spec["quantize_weights"]
        options["quantize_weights"] = {field: section[field] for field in fields}
    parts = ["optimized"] * ("optimize" in options) + ["dynamic"] * is_dynamic
    parts += [precision] * (precision != FULL_PRECISION)
    return ("-".join(parts), options) if options else ("", {})


def _without_run_fields(spec: Spec) -> Spec:
    """Drop fields of `run`, for no key to contain them."""
    sections = {}
    for section, of_run in (("inputs", "preprocess"), ("outputs", "labels")):
        sections[section] = {
            name: {field: value for field, value in tensor.items() if field != of_run}
            for name, tensor in spec[section].items()
        }
    return {**spec, **sections}
