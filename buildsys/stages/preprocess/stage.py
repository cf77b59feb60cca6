"""Preprocess stage: golden images for engines, and graphs that take raw images.

Golden outputs are those of the network for images that torchvision's transforms have prepared, so
an engine is compared from the raw image on. The nodes are compared with torchvision alone, too: a
network may forgive what another one does not.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import prod

import numpy as np
from onnx import ModelProto, helper

from buildsys.backends.onnxruntime.session import OrtGraph
from buildsys.errors import CheckFailed
from buildsys.manifest.shape_cases import Dims, concrete_shape
from buildsys.models.images import decode_image, find_images
from buildsys.models.user_code import import_library
from buildsys.onnx_graphs.onnx_file import check_file, elem_type, load_model, save_model
from buildsys.onnx_graphs.tensors import Array, Case, save_case, save_cases, tensor_of
from buildsys.stages.preprocess.image_nodes import Image, prepend
from buildsys.stages.preprocess.result import PreprocessResult
from buildsys.stages.reference.original import Original, golden_inputs, load_original
from buildsys.stages.reference.sizes import draw_sizes
from buildsys.workers.job import Job, StageResult

_MOST_SIZES, _MOST_PIXELS = 16, 1 << 23  # drawn ones
# steps, and share of the values: the last bit of a filter can round a pixel up or down
_LIMITS, _TALL_LIMITS = (1.01, 1e-3), (2.01, 0.5)  # of tall images, Pillow resizes rows first
_EXACT = 0.01  # steps


def run(job: Job) -> StageResult:
    """Put the nodes in front of a graph, or write golden cases with images.

    Raises: CheckFailed: the nodes differ from torchvision's transforms.
    """
    if "model" not in job.inputs:
        return _golden(job)
    source, target = job.inputs["model"], job.outputs["model"]
    model = load_model(source, external_data=False)
    nodes = prepend(model, job.options["images"])
    save_model(model, target, weights_of=source)
    check_file(target, "the graph with preprocessing", CheckFailed)
    return StageResult(figures=PreprocessResult(nodes=nodes))


def _golden(job: Job) -> StageResult:
    import_library("torchvision", job.project)
    checks = {name: _NodeCheck(name, image) for name, image in job.options["images"].items()}
    for dims in _drawn(job):
        for name, check in checks.items():
            check.prepare(_images(job, name, dims, f"{dims}")[:1])
    original = load_original(job)
    for name, dims in job.options["cases"].items():
        job.progress(f"case {name}")
        case = _case(job, original, checks, dims, name)
        kind, alternatives = case.float_type, case.alternatives
        save_case(job.outputs[f"case.{name}"], case.inputs, case.outputs, kind, alternatives)
    if samples := job.options.get("samples"):
        calls, dims = range(samples["calls"]), samples["dims"]
        drawn = (_case(job, original, checks, dims, "opt", number) for number in calls)
        save_cases(job.outputs["samples"], drawn)
    compared = [place for check in checks.values() for place in check.compared]
    figures = PreprocessResult(
        sizes=[list(size) for size in sorted({size for size, _, _ in compared})],
        largest_step=max(step for _, step, _ in compared),
        differing=float(np.mean([share for _, _, share in compared])),
    )
    return StageResult(figures=figures)


def _drawn(job: Job) -> Iterator[Dims]:
    """Draw sizes of images, as aspect ratios decide how sizes are rounded."""
    names = {dim for image in job.options["images"].values() for dim in image["size"] or ()}
    every = job.options["spans"]
    spans = {dim: every[dim] for dim in every if dim in names}
    drawn = draw_sizes(spans, job.options["cases"].values(), job.options["source"]["seed"])
    budget = _MOST_PIXELS
    for dims in islice(drawn, _MOST_SIZES) if spans else ():
        budget -= prod(dims.values())
        if budget >= 0:
            yield {**{dim: span["min"] for dim, span in every.items()}, **dims}


def _case(
    job: Job, original: Original, checks: "_Checks", dims: Dims, case: str, sample: int = 0
) -> Case:
    """Compute the network's outputs for images that torchvision has prepared."""
    seed = job.options["source"]["seed"] + sample
    inputs = golden_inputs(job, dims, {"case": case, "seed": seed, "sample": sample})
    raw = dict(inputs)
    for name, check in checks.items():
        pixels = _images(job, name, dims, case, sample)
        inputs[name] = tensor_of(check.prepare(pixels), inputs[name].dtype)
        raw[name] = tensor_of(pixels)
    return replace(original.case(inputs, original.call(inputs, dims)), inputs=raw)


def _images(job: Job, name: str, dims: Dims, case: str, sample: int = 0) -> Array:
    """Make raw images: those of ``data`` in the case's size, or noise of different colors.

    Noise shows a resize without antialiasing, which smooth images hide.
    """
    shape = concrete_shape(job.options["served"][name]["shape"], dims)
    count, high, wide, channels = shape
    data = job.options["data"][name] or {}
    if "images" in data:
        from PIL.Image import fromarray

        files = find_images(data, name, (sample + 1) * count, job.project)[sample * count :]
        pictures = (fromarray(decode_image(file, data["color"]).squeeze()) for file in files)
        stacked: Array = np.stack([np.asarray(p.resize((wide, high))) for p in pictures])
        return stacked.reshape(shape)
    seed = [job.options["source"]["seed"], sample, *name.encode(), *case.encode()]
    stream = np.random.default_rng(seed)
    noise = stream.integers(0, 256, shape, np.uint16)
    mixed: Array = (3 * noise + stream.integers(0, 256, (count, 1, 1, channels), np.uint16)) // 4
    return mixed.astype(np.uint8)


def _prepared(pixels: Array, image: Image) -> Array:
    """Prepare a decoded image by torchvision's transforms."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as steps

    is_first, picture = image["layout"] == "nchw", steps.to_pil_image(pixels)
    size = image["shape"][2:] if is_first else image["shape"][1:3]
    mode = InterpolationMode(image["interpolation"])
    if image["resize"] is not None:
        picture = steps.center_crop(steps.resize(picture, image["resize"], mode), size)
    elif image["size"] is not None:
        picture = steps.resize(picture, size, mode)
    tensor = steps.pil_to_tensor(picture).double()
    tensor = tensor.flip(0) if image["color"] == "bgr" else tensor
    tensor = steps.normalize(tensor / image["divide"], image["mean"], image["std"])
    return np.asarray(tensor if is_first else tensor.permute(1, 2, 0))


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
        # height and width, largest step, share of different values
        self.compared: list[tuple[tuple[int, int], float, float]] = []

    def prepare(self, pixels: Array) -> Array:
        """Prepare images by torchvision.

        Raises: CheckFailed: the nodes prepare them otherwise.
        """
        high, wide = pixels.shape[1:3]
        values = np.stack([_prepared(image, self._image) for image in pixels])
        actual = self._graph.run({self._name: tensor_of(pixels)})["out"].values()
        std = np.asarray(self._image["std"])
        std = std.reshape(-1, 1, 1) if self._image["layout"] == "nchw" else std
        steps = abs(actual - values) * std * self._image["divide"]
        largest, share = float(steps.max()), float((steps > _EXACT).mean())
        most, most_differing = _LIMITS if high <= 2 * wide else _TALL_LIMITS
        if not (largest <= most and share <= most_differing):
            problem = (
                f"the preprocessing of {self._name} differs from torchvision's at {high} x {wide}"
                f" by {largest:.3g} steps, in {100 * share:.2g} % of the values"
            )
            raise CheckFailed(problem, f"remove inside from inputs.{self._name}.preprocess")
        self.compared.append(((high, wide), largest, share))
        return values


_Checks = Mapping[str, _NodeCheck]
