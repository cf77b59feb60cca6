"""Graphs between stages, with their inputs, shape cases and golden tensors.

There are three: the exported graph, the graph after the surgery steps on it, and the graph after
the steps on the simplified one. Without surgery they have the same inputs, cases and golden
tensors. Everything here follows from the manifest alone, since planning precedes all runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from buildsys.manifest.shape_cases import (
    AFTER_EXPORT,
    AFTER_SIMPLIFY,
    ALL_CASES,
    DimRange,
    Dims,
    Inputs,
    Step,
    allowed_sizes,
    case_values,
    changes_golden,
    data_after,
    exported_interface,
    image_ports,
    images_of,
    interface_after,
    names_in_shapes,
    representatives,
    steps_of,
)
from buildsys.manifest.value_ranges import VALUE_CASES
from buildsys.plan.action import FileRef
from buildsys.stages.table import (
    CONVERT,
    EXPORT,
    PREPROCESS,
    REFERENCE,
    SEARCH,
    SIMPLIFY,
    SURGERY,
    target_of,
)

Spec = Mapping[str, Any]  # a resolved and checked manifest, as plain JSON values
# input name -> {"min": shape, "opt": shape, "max": shape}
Profile = Mapping[str, Mapping[str, Sequence[int]]]
_OUTPUT_FIELDS = ("labels", "scores", "rows")  # outputs of the policy ``detections``
_SUGGESTED_SIZES = 5  # at most, of conditions in the network's source
_SEEDS = ("seed-1", "seed-2")
GOLDEN = "golden-"  # cases of files
IMAGES = "images"  # variant of the target that makes golden images
_SAMPLES = 32  # fewer cannot tell shares of classes


class Graph(NamedTuple):
    """An ONNX graph in the build folder and its target."""

    folder: str
    target: str

    def files(self) -> dict[str, FileRef]:
        """Locate the graph's files by role."""
        return {
            "model": FileRef(f"{self.folder}/model.onnx"),
            "model.data": FileRef(f"{self.folder}/model.onnx.data", optional=True),
        }

    @property
    def assembled(self) -> FileRef:
        """The list of its outputs that are made of unlike parts."""
        return FileRef(f"{self.folder}/assembled.json")


@dataclass(frozen=True)
class PlannedConversion:
    """A graph in another precision than fp32."""

    model: str
    variant: str  # "fp16", "auto-fp16"; of an engine with its own limits "auto-fp16-NAME"
    precision: str
    tolerance: Mapping[str, Any]
    search: bool = False  # nodes stay in fp32 until the graph is within the limits
    by_metric: bool = False  # the metric of `evaluate` is the limit of the search
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


class LoweredGraph(NamedTuple):
    """A graph in an older opset, for a library that reads no newer one."""

    source: Graph
    variant: str  # "opset17"; of a graph in another precision "int8-opset17"
    opset: int
    ir_version: int

    @property
    def graph(self) -> Graph:
        """The lowered graph."""
        _, model, *_ = self.source.target.split(":")
        return Graph(f"{model}/{CONVERT}/{self.variant}", target_of(CONVERT, model, self.variant))


@dataclass(frozen=True)
class GraphPoint:
    """A graph read by later stages."""

    steps: Sequence[Step]
    source: Graph  # before the steps
    graph: Graph  # after the steps
    inputs: Inputs  # shapes and dtypes
    data: Mapping[str, Any]  # input -> the manifest's ``data``, None without
    dims: Mapping[str, Any]  # ranges of the dynamic dimensions
    values: Mapping[str, Dims]  # every case, including cases with equal values
    origins: Mapping[str, str]  # case -> the case that stands for its values, also in later graphs
    policies: Mapping[str, Any]  # output -> policy of comparisons
    golden_folder: str
    golden_target: str  # writes the golden tensors
    has_further: bool  # outputs of further cases follow from the network's

    def cases(self, names: Iterable[str] = ALL_CASES) -> dict[str, Dims]:
        """List the shape cases of some names, each distinct shape once."""
        chosen = {self.origins[case] for case in names}
        return {case: sizes for case, sizes in self.values.items() if case in chosen}

    @property
    def assembling(self) -> Graph:
        """The graph whose target lists outputs made of unlike parts."""
        return self.graph if changes_golden(self.steps) else self.source

    @property
    def compare(self) -> dict[str, Any]:
        """The option of comparing stages; empty without policies."""
        return {"compare": dict(self.policies)} if self.policies else {}

    def golden(
        self, cases: Iterable[str], prefix: str = "", *, optional: bool = False
    ) -> dict[str, FileRef]:
        """Locate the golden tensors of ``cases`` by role."""
        folder = self.golden_folder
        return {f"{prefix}case.{c}": FileRef(f"{folder}/{c}.npz", optional) for c in cases}

    def golden_sizes(self, further: Mapping[str, Any]) -> dict[str, FileRef]:
        """Locate the cases of all sizes of small inputs."""
        file = FileRef(f"{self.golden_folder}/sizes.npz", optional=True)
        return {"sizes": file} if further.get("sizes") else {}

    def golden_samples(self, samples: Mapping[str, Any]) -> dict[str, FileRef]:
        """Locate the samples for low precision."""
        file = FileRef(f"{self.golden_folder}/samples.npz", optional=True)
        return {"samples": file} if samples else {}


class GraphPoints(NamedTuple):
    """The graphs of one model."""

    values: Mapping[str, Dims]  # all dimensions in every case
    exported: GraphPoint
    unsimplified: GraphPoint  # input of simplify
    final: GraphPoint  # converted
    served: GraphPoint  # built into engines: the final one, perhaps with images as inputs


def graph_points(spec: Spec) -> GraphPoints:
    """Derive the graphs of a model."""
    name, interface = spec["model"], exported_interface(spec)
    export, simplify = (Graph(f"{name}/{s}", f"{s}:{name}") for s in (EXPORT, SIMPLIFY))
    chain = [("", export), (AFTER_EXPORT, export), (AFTER_SIMPLIFY, simplify)]
    steps, inputs = [steps_of(spec, when) if when else [] for when, _ in chain], []
    for taken in steps:
        interface = interface_after(interface, taken)
        inputs.append(interface.inputs)
    images = images_of(spec)
    served = {**inputs[-1], **image_ports(images)}
    changes = any(steps) or bool(images)
    dims = [spec["dims"]] * 4
    if changes:
        dims = [_only(spec["dims"], names_in_shapes(tensors)) for tensors in (*inputs, served)]
    values = case_values(spec["dims"])
    usual = [_only(case, dims[-1]) for case in values.values()]
    for case, sizes in profile_values(spec, spec["engines"], served, dims[-1]).items():
        if sizes not in usual:
            values[case] = {**values["opt"], **sizes}
    own, origins = values, representatives(values)
    points, golden, has_further = [], (f"{name}/{REFERENCE}", f"{REFERENCE}:{name}"), True
    data = {name: tensor["data"] for name, tensor in (spec["inputs"] or {}).items()}
    declared = spec["outputs"].items()
    policies = {output: tensor["compare"] for output, tensor in declared if tensor.get("compare")}
    for (when, source), taken, tensors, spans in zip(chain, steps, inputs, dims[:3], strict=True):
        graph = Graph(f"{name}/{SURGERY}/{when}", f"{SURGERY}:{name}:{when}") if taken else source
        if changes_golden(taken):
            golden = graph
        data = data_after(data, taken)
        for step in taken:
            policies = _renamed(policies, step.get("rename") or {})
            has_further &= step.get("reference") is None
        if changes:
            own = {case: _only(sizes, spans) for case, sizes in values.items()}
            origins = representatives(own)
        points.append(
            GraphPoint(taken, source, graph, tensors, data, spans, own, origins, policies, *golden,
                       has_further)
        )  # fmt: skip
    exported, unsimplified, final = points
    last = final
    if images:
        own = {case: _only(sizes, dims[-1]) for case, sizes in values.items()}
        last = replace(
            final, inputs=served, dims=dims[-1], values=own, origins=representatives(own),
            golden_folder=f"{name}/{PREPROCESS}/{IMAGES}",
            golden_target=target_of(PREPROCESS, name, IMAGES),
            has_further=False,
        )  # fmt: skip
    return GraphPoints(values, exported, unsimplified, final, last)


def size_ranges(exported: GraphPoint) -> dict[str, dict[str, int]]:
    """Collect ``min``, ``max`` and ``multiple_of`` of the exported dimensions."""
    fields = ("min", "max", "multiple_of")
    return {dim: {field: span[field] for field in fields} for dim, span in exported.dims.items()}


def further_cases(spec: Spec, exported: GraphPoint) -> dict[str, Any]:
    """Choose the further cases of ``validate``, or {}.

    Their sizes are chosen when the golden outputs are computed: some depend on the network's
    source. So their files are optional.
    """
    section, spans = spec["validate"], size_ranges(exported)
    data = [tensor["data"] or {"random": ""} for tensor in spec["inputs"].values()]
    is_dynamic = any(span["min"] < span["max"] for span in spans.values())
    drawn = section["drawn_sizes"] if is_dynamic else 0
    names = [f"drawn-{n + 1}" for n in range(drawn + _SUGGESTED_SIZES if drawn else 0)]
    values: list[str] = []
    if section["other_values"] and any("random" in entry for entry in data):
        values = [*_SEEDS, *VALUE_CASES]
    elif section["other_values"] and any("python" in entry for entry in data):
        values = list(_SEEDS)
    golden = _golden_files(spec["reference"]["npz"])
    if not names and not values and not golden:
        return {}
    return {
        "sizes": names, "drawn": drawn, "spans": spans, "values": values,
        "dims": exported.values["min"], **({"golden": golden} if golden else {}),
    }  # fmt: skip


def _golden_files(files: Sequence[str]) -> dict[str, str]:
    """Name the cases of golden files, after the files if their names differ."""
    stems = [PurePosixPath(file).stem for file in files]
    names = stems if len({*stems}) == len(stems) else [*map(str, range(1, len(stems) + 1))]
    return {f"{GOLDEN}{name}": file for name, file in zip(names, files, strict=True)}


def golden_samples(spec: Spec, exported: GraphPoint, final: GraphPoint) -> dict[str, Any]:
    """Choose the sizes of enough samples to judge low precision, and the number of calls.

    Surgery that changes golden tensors does not carry them.
    """
    shapes = [tensor["shape"] for tensor in exported.inputs.values() if tensor["shape"]]
    is_exact = all(engine["precision"] == "fp32" for engine in spec["engines"])
    if not shapes or is_exact or final.golden_folder != exported.golden_folder:
        return {}
    dims, first = dict(exported.values["opt"]), shapes[0][0]
    if isinstance(first, str):
        span = exported.dims[first]
        dims[first] = max((n for n in allowed_sizes(span) if n <= _SAMPLES), default=span["min"])
    rows = dims[first] if isinstance(first, str) else first
    return {"dims": dims, "calls": -(-_SAMPLES // rows)}


def profile_values(
    spec: Spec, engines: Iterable[Mapping[str, Any]], inputs: Inputs, dims: Mapping[str, Any]
) -> dict[str, Dims]:
    """List the cases of the engines' explicit profiles by name."""
    profiles = [profile for engine in engines for profile in engine.get("profiles") or ()]
    if not profiles:
        return {}
    default = case_values(dims)["opt"]  # for dimensions that the profile does not set
    cases = []
    for profile in profiles:
        every = profile_cases(profile, inputs, spec["dims"])
        cases += [{**default, **every[point]} for point in spec["verify"]["cases"]]
    # engines share a case by its sizes
    return {
        ",".join(f"{dim}={value}" for dim, value in sorted(case.items())): case for case in cases
    }


def profile_cases(
    profile: Profile, inputs: Inputs, dims: Mapping[str, DimRange]
) -> dict[str, Dims]:
    """Choose the dimensions in the four cases of one profile.

    ``multiple_of`` and ``odd`` of ``dims`` apply here as well, as far as they fit the range.
    """
    spans: dict[str, DimRange] = {}
    for name, tensor in inputs.items():
        shapes = profile.get(name) or {}
        for axis, dim in enumerate(tensor["shape"]):
            is_complete = all(axis < len(shapes.get(point, ())) for point in ALL_CASES[:3])
            if isinstance(dim, str) and dim not in spans and is_complete:
                low, usual, high = (shapes[point][axis] for point in ALL_CASES[:3])
                declared = dims.get(dim, {})
                odd = declared.get("odd")
                spans[dim] = {
                    "min": low,
                    "opt": usual,
                    "max": high,
                    "odd": odd if odd is not None and low <= odd <= high else None,
                    "multiple_of": declared.get("multiple_of") or 1,
                }
    return case_values(spans)


def _renamed(policies: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename the outputs in policies as a step does."""

    def new(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [new(entry) for entry in value]
        return names.get(value, value) if isinstance(value, str) else value

    return {
        names.get(output, output): {
            field: new(value) if field in _OUTPUT_FIELDS else value
            for field, value in policy.items()
        }
        for output, policy in policies.items()
    }


def _only(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
