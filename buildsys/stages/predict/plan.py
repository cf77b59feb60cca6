"""Plan of the predict stage: the original model on the data of `evaluate`."""

from collections.abc import Iterator, Mapping
from glob import escape, has_magic
from typing import Any

from buildsys.plan.action import Action, FileRef
from buildsys.plan.custom_operators import NO_OPERATORS
from buildsys.plan.model_plan import ModelPlan
from buildsys.system.user_modules import source_of

_TABLES = ("parquet", "arrow", "dataset")
_IMAGES = {"images", "folder", *_TABLES}
_FIELDS = ("data", "metric", "output", "postprocess", "batch_size", "samples")
_LIBRARIES = {  # of metrics
    "auroc": "scikit-learn", "r2": "scikit-learn", "map50_95": "faster-coco-eval",
    "map50": "faster-coco-eval", "wer": "jiwer", "cer": "jiwer",
}  # fmt: skip


def plan_predict(model: ModelPlan) -> Iterator[Action]:
    """Plan the predictions of the original model, if an engine is evaluated."""
    if not model.spec["evaluate"]:
        return
    network = model.network
    unused = ("data",) if network.is_onnx else ()  # torch draws random weights with golden inputs
    options = {name: value for name, value in network.options.items() if name not in unused}
    yield model.action(
        "predict",
        "evaluate/original.json",
        runs_network=True,
        operators=model.operators.use() if network.is_onnx else NO_OPERATORS,
        options={**options, "evaluate": evaluation_options(model)},
        outputs={"records": records_of(model)},
        environment=("onnxruntime",) if network.is_onnx else (),
        **evaluation_fields(model, ("onnx", "onnxruntime") if network.is_onnx else ()),
    )


def records_of(model: ModelPlan) -> FileRef:
    """Locate the records of the original model."""
    return FileRef(f"{model.name}/evaluate/original.npz")


def evaluation_options(model: ModelPlan, half: str = "") -> dict[str, Any]:
    """Collect what decides samples, or one half of them, and metric."""
    section = model.spec["evaluate"]
    return {
        **{field: section[field] for field in _FIELDS},
        "dims": model.exported.dims,
        "preprocess": _preprocess(model),
        "classes": model.classes,
        "half": half,
    }


def _preprocess(model: ModelPlan) -> dict[str, Any]:
    """Collect the steps from images to inputs, if the data may have images."""
    if not _IMAGES & model.spec["evaluate"]["data"].keys():
        return {}
    inputs = model.exported.inputs
    return {name: steps for name, steps in model.preprocess.items() if name in inputs}


def evaluation_fields(model: ModelPlan, tools: tuple[str, ...]) -> dict[str, Any]:
    """Collect files and libraries that decide the samples and the metric."""
    section = model.spec["evaluate"]
    data, metric = section["data"], section["metric"]
    own = metric["python"] if isinstance(metric, dict) else None
    functions = [data.get("python"), own, section["postprocess"]]
    sources = [*_files(data), *(source_of(name) for name in functions if name)]
    libraries = ["numpy", "pillow"] if _preprocess(model) else ["numpy"]
    libraries += ["pyarrow"] if any(kind in data for kind in _TABLES) else []
    libraries += ["python"] if any(functions) else []
    libraries += [_LIBRARIES[metric]] if not own and metric in _LIBRARIES else []
    return {"sources": tuple(dict.fromkeys(sources)), "tools": (*libraries, *tools)}


def _files(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the files of the samples, patterns of them, and folders of images with a slash."""
    if "folder" in data:
        yield f"{data['folder']}/"
    if "dataset" in data:
        yield f"{escape(data['dataset'])}/*"
    if "images" in data:
        yield data["images"] if has_magic(data["images"]) else f"{data['images']}/"
        yield data["labels"]
    yield from (data[kind] for kind in ("npz", "parquet", "arrow") if kind in data)
