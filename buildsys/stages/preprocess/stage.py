"""Preprocess stage: golden images for engines, and graphs that take raw images.

Golden outputs are those of the network for images that torchvision's transforms have prepared, so
an engine is compared from the raw image on. The nodes are compared with torchvision alone, too: a
network may forgive what another one does not.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import prod

import numpy as np
from onnx import ModelProto, helper

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import CheckFailed
from buildsys.manifest.shape_cases import Dims, concrete_shape
from buildsys.models.golden_inputs import golden_input
from buildsys.models.images import decode_image, find_images
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.onnx_file import check_file, elem_type, load_model, save_model
from buildsys.onnx_graphs.tensors import Array, Case, Tensor, save_case, save_cases, tensor_of
from buildsys.stages.preprocess.image_nodes import Image, prepend
from buildsys.stages.preprocess.result import PreprocessResult
from buildsys.stages.reference.original import Original, load_original
from buildsys.stages.reference.sizes import draw_sizes
from buildsys.workers.job import Job, StageResult

_MOST_SIZES, _MOST_PIXELS = 16, 1 << 23  # drawn ones
_MOST_STEPS, _MOST_DIFFERING = 1.01, 1e-3  # a filter's last bit can round a pixel up or down
_EXACT = 0.01  # steps


def run(job: Job) -> StageResult:
    """Put the nodes in front of a graph, or write golden cases with images.

    Raises: CheckFailed: the nodes differ from torchvision's transforms.
    """
    if "model" not in job.inputs:
        return _golden(job)
    source, target = job.inputs["model"], job.outputs["model"]
    model = load_model(source, external_data=False)
    count = prepend(model, job.options["images"])
    save_model(model, target, weights_of=source)
    check_file(target, "the graph with preprocessing", CheckFailed)
    return StageResult(figures=PreprocessResult(nodes=count))


def _golden(job: Job) -> StageResult:
    import_library("torchvision", job.project)
    checks = {name: _NodeCheck(name, image) for name, image in job.options["images"].items()}
    for dims in _drawn(job):
        job.progress("comparing other sizes with torchvision")
        for name, check in checks.items():
            check.prepare(_images(job, name, dims, f"{dims}")[:1])
    original = load_original(job)
    for name, dims in job.options["cases"].items():
        job.progress(f"case {name}")
        case = _case(job, original, checks, dims, name)
        save_case(
            job.outputs[f"case.{name}"], case.inputs, case.outputs, case.float_type,
            case.alternatives,
        )  # fmt: skip
    if samples := job.options.get("samples"):
        job.progress("computing samples for low precision")
        calls = range(samples["calls"])
        cases = [_case(job, original, checks, samples["dims"], "opt", n) for n in calls]
        save_cases(job.outputs["samples"], cases)
    steps = [step for check in checks.values() for step in check.steps]
    figures = PreprocessResult(
        images=sum(check.images for check in checks.values()),
        sizes=[list(size) for size in sorted({s for c in checks.values() for s in c.sizes})],
        largest_step=max(step for step, _ in steps),
        differing=float(np.mean([share for _, share in steps])),
    )
    return StageResult(figures=figures)


def _drawn(job: Job) -> Iterator[Dims]:
    """Draw sizes of images, as aspect ratios decide how sizes are rounded."""
    names = {dim for image in job.options["images"].values() for dim in image["size"] or ()}
    spans = {dim: span for dim, span in job.options["spans"].items() if dim in names}
    if not spans:
        return
    smallest = {dim: span["min"] for dim, span in job.options["spans"].items()}
    budget = _MOST_PIXELS
    drawn = draw_sizes(spans, job.options["cases"].values(), job.options["source"]["seed"])
    for dims in islice(drawn, _MOST_SIZES):
        budget -= prod(dims.values())
        if budget >= 0:
            yield {**smallest, **dims}


def _case(
    job: Job,
    original: Original,
    checks: Mapping[str, "_NodeCheck"],
    dims: Dims,
    case: str,
    sample: int = 0,
) -> Case:
    """Compute the network's outputs for images that torchvision has prepared."""
    raw, seed = dict[str, Tensor](), job.options["source"]["seed"] + sample
    inputs = dict[str, Tensor]()
    for name, port in job.options["inputs"].items():
        if name in checks:
            pixels = _images(job, name, dims, case, sample)
            inputs[name] = tensor_of(checks[name].prepare(pixels), port["dtype"])
            raw[name] = tensor_of(pixels)
        else:
            shape, data = concrete_shape(port["shape"], dims), job.options["data"][name]
            raw[name] = inputs[name] = golden_input(
                name, shape, port["dtype"], data, case=case, seed=seed, project=job.project,
                sample=sample,
            )  # fmt: skip
    computed = original.case(inputs, original.call(inputs, dims))
    return Case(raw, computed.outputs, computed.float_type, computed.alternatives)


def _images(job: Job, name: str, dims: Dims, case: str, sample: int = 0) -> Array:
    """Make raw images: those of ``data`` in the case's size, or noise of different colors.

    Noise shows a resize without antialiasing, which smooth images hide.
    """
    shape = concrete_shape(job.options["served"][name]["shape"], dims)
    *batch, high, wide, channels = shape
    data, count = job.options["data"][name] or {}, prod(batch)
    if "images" in data:
        from PIL.Image import fromarray

        files = find_images(data, name, (sample + 1) * count, job.project)[sample * count :]
        pictures = (decode_image(file, data["color"]) for file in files)
        resized = [np.asarray(fromarray(p.squeeze()).resize((wide, high))) for p in pictures]
        stacked: Array = np.stack(resized).reshape(shape)
        return stacked
    seed = [job.options["source"]["seed"], sample, *name.encode(), *case.encode()]
    stream = np.random.default_rng(seed)
    noise = stream.integers(0, 256, shape, np.uint16)
    colors = stream.integers(0, 256, (*batch, 1, 1, channels), np.uint16)
    mixed: Array = (3 * noise + colors) // 4
    return mixed.astype(np.uint8)


class _NodeCheck:
    """The nodes of one input in ONNX Runtime, compared with torchvision's transforms."""

    def __init__(self, name: str, image: Image) -> None:
        self._name, self._image = name, image
        kind = elem_type("float32")
        ends = [helper.make_tensor_value_info(end, kind, image["shape"]) for end in (name, "out")]
        nodes = [helper.make_node("Identity", [name], ["out"])]
        graph = helper.make_graph(nodes, "preprocess", ends[:1], ends[1:])
        opset = helper.make_opsetid("", 13)
        model: ModelProto = helper.make_model(graph, opset_imports=[opset], ir_version=8)
        prepend(model, {name: {**image, "dtype": "float32"}})
        self._graph = OrtGraph(model.SerializeToString())
        self.steps: list[tuple[float, float]] = []  # largest, and share of different values
        self.sizes: set[tuple[int, int]] = set()
        self.images = 0

    def prepare(self, pixels: Array) -> Array:
        """Prepare images by torchvision.

        Raises: CheckFailed: the nodes prepare them otherwise.
        """
        from buildsys.stages.preprocess.torchvision_steps import prepared

        *batch, high, wide, channels = pixels.shape
        single = pixels.reshape(-1, high, wide, channels)
        values = np.stack([prepared(image, self._image) for image in single])
        values = values.reshape(*batch, *values.shape[1:])
        actual = self._graph.run({self._name: tensor_of(pixels)})["out"].values()
        std = np.asarray(self._image["std"])
        std = std.reshape(-1, 1, 1) if self._image["layout"] == "nchw" else std
        steps = abs(actual - values) * std * self._image["divide"]
        largest, share = float(steps.max()), float((steps > _EXACT).mean())
        if not (largest <= _MOST_STEPS and share <= _MOST_DIFFERING):
            problem = (
                f"the preprocessing of {self._name} differs from torchvision's at {high} x {wide}"
                f" by {largest:.3g} steps, in {100 * share:.2g} % of the values"
            )
            raise CheckFailed(problem, f"remove inside from inputs.{self._name}.preprocess")
        self.steps.append((largest, share))
        self.sizes.add((high, wide))
        self.images += len(single)
        return values
