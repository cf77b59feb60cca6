"""A Triton model repository: a folder per model, with config.pbtxt and numbered versions.

Source: triton-inference-server/common, model_config.proto; server, "Model Repository", "Model
Configuration".
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.release.serving import ServedEngine
from buildsys.system.files import replace_file

_TYPES = {
    "bool": "TYPE_BOOL", "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64",
    "bfloat16": "TYPE_BF16", "string": "TYPE_STRING",
    **{f"{kind}{bits}": f"TYPE_{kind}{bits}".upper()
       for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "openvino": "", "tensorrt": "tensorrt_plan"}
_FASTER = 1.1  # a larger batch must raise the throughput by this factor


class _Word(str):
    """The name of a value of an enumeration."""


def refusal(engine: ServedEngine) -> str:
    """Say why Triton cannot serve an engine, "" if it can."""
    backend, figures = engine.variant.backend, engine.figures
    providers = {*figures["settings"].get("providers", ())} - {"cpu", "cuda"}
    others = providers - {"CPUExecutionProvider", "CUDAExecutionProvider"}
    types = {port["dtype"] for ports in engine.shapes.values() for port in ports}
    if backend not in _PLATFORMS:
        return f"no backend of Triton runs {backend} engines"
    if others and backend == "onnxruntime":
        return f"it uses the execution provider {', '.join(sorted(map(str, others)))}"
    if figures.get("operators") or figures.get("plugins"):
        return "it has custom operators, which Triton needs as libraries of its own"
    if figures.get("formats"):
        return "a tensor of it is not linear in memory"
    if types - {*_TYPES}:
        return f"Triton has no type {', '.join(sorted(types - {*_TYPES}))}"
    return ""


def write_repository(
    engines: Sequence[ServedEngine], folder: Path, version: int
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Write the models of engines; return the engines of each, and refused engines with reasons.

    TensorRT engines of one model and precision, for several compute capabilities, are one model.
    Raises: StageError: the version exists.
    """
    models: dict[str, list[ServedEngine]] = {}
    refused = {}
    for engine in sorted(engines, key=_latency):
        name, variant = f"{engine.variant.model}-{engine.variant.engine}", engine.variant
        if variant.backend == "tensorrt":
            name = f"{variant.model}-tensorrt-{variant.precision}"
        group = models.setdefault(name, [])
        taken = {_capability(other): other.variant.name for other in group}
        if problem := refusal(engine):
            refused[variant.name] = problem
        elif _capability(engine) in taken:
            refused[variant.name] = f"{taken[_capability(engine)]} is for the same GPUs"
        elif group and _config(name, [engine])["input"] != _config(name, group)["input"]:
            refused[variant.name] = f"its inputs are not those of {group[0].variant.name}"
        else:
            group.append(engine)
    models = {name: group for name, group in models.items() if group}
    for name in models:
        if (target := folder / name / str(version)).exists():
            raise StageError(f"{target} exists already", "name another folder, or remove it")
    for name, group in models.items():
        _write_model(name, group, folder / name, version)
    written = {name: [one.variant.name for one in group] for name, group in models.items()}
    return written, refused


def _write_model(name: str, engines: Sequence[ServedEngine], folder: Path, version: int) -> None:
    target, new = folder / str(version), folder / f".{version}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for engine in engines:
        for file in engine.figures["files"]:
            place = new / _file_name(engine, file)
            place.parent.mkdir(exist_ok=True)
            shutil.copyfile(engine.folder / file, place)
    text = "".join(f"{line}\n" for line in _text_format(_config(name, engines)))
    replace_file(folder / "config.pbtxt", text.encode())
    new.rename(target)  # which Triton may be waiting for


def _file_name(engine: ServedEngine, file: str) -> str:
    """Name a file of an engine as Triton expects it."""
    backend, main = engine.variant.backend, engine.file.name
    if backend == "tensorrt":
        return f"{engine.variant.engine}.plan"
    if backend == "onnxruntime" and len(engine.figures["files"]) > 1:  # weights in other files
        return f"model.onnx/{'model.onnx' if file == main else file}"
    return f"model{Path(file).suffix}"


def _config(name: str, engines: Sequence[ServedEngine]) -> dict[str, Any]:
    """Make the configuration of a model."""
    first = engines[0]
    variant, most = first.variant, _largest_batch(first)
    on_gpu = first.figures.get("device", {}).get("kind") == "gpu"
    group: dict[str, Any] = {"kind": _Word("KIND_GPU" if on_gpu else "KIND_CPU"), "count": 1}
    if len(first.figures.get("profiles") or ()) > 1:
        group["profile"] = [str(number) for number in range(len(first.figures["profiles"]))]
    ports = {
        kind: [
            {"name": port["name"], "data_type": _type(port), "dims": _dims(port, most)}
            for port in first.shapes[f"{kind}s"]
        ]
        for kind in ("input", "output")
    }
    config: dict[str, Any] = {"name": name, "backend": variant.backend}
    config |= {"platform": _PLATFORMS[variant.backend]} if _PLATFORMS[variant.backend] else {}
    config |= {"max_batch_size": most, **ports, "instance_group": group}
    config["default_model_filename"] = _file_name(first, first.file.name).partition("/")[0]
    config["version_policy"] = {"latest": {"num_versions": 1}}
    if variant.backend == "tensorrt":
        config["cc_model_filenames"] = [
            {"key": _capability(engine), "value": _file_name(engine, "")} for engine in engines
        ]
    batch = max(1, most)
    if most > 1:
        batching = _dynamic_batching(variant.document, most)
        config |= {} if batching is None else {"dynamic_batching": batching}
        batch = (batching or {}).get("preferred_batch_size", [1])[0]
    warm_up = [
        {"key": port["name"], "value": {
            "data_type": _type(port), "zero_data": True,
            "dims": _warm_up_dims(first.figures, port, most),
        }}
        for port in first.shapes["inputs"]
    ]  # fmt: skip
    config["model_warmup"] = {"name": "zeros", "batch_size": batch, "inputs": warm_up}
    return config


def _largest_batch(engine: ServedEngine) -> int:
    """Return the largest batch, 0 unless all inputs and outputs have the same first axis.

    0 for OpenVINO: its backend crashes on batches below the largest, says its README.
    """
    shapes = [port["shape"] for ports in engine.shapes.values() for port in ports]
    firsts = {shape[0] if shape else 0 for shape in shapes}
    if (
        engine.variant.backend == "openvino"
        or len(firsts) != 1
        or (isinstance(first := firsts.pop(), int) and first >= 0)
    ):
        return 0
    spans = [_span(engine.figures, port["name"], 0) for port in engine.shapes["inputs"]]
    takes_one = all(span[0] == 1 for span in spans)
    return min((span[2] for span in spans), default=0) if takes_one else 0


def _span(figures: Mapping[str, Any], name: str, axis: int) -> tuple[int, int, int]:
    """Return the smallest, usual and largest size of an axis; 0, 0, 0 if unknown."""
    if profiles := [p[name] for p in figures.get("profiles") or () if name in p]:
        points = {point: [p[point][axis] for p in profiles] for point in ("min", "opt", "max")}
        return min(points["min"]), points["opt"][0], max(points["max"])
    sizes = (figures.get("ranges") or {}).get(name, [])
    size = sizes[axis] if axis < len(sizes) else 0
    return (size[0], size[0], size[1]) if isinstance(size, list) else (size, size, size)


def _type(port: Mapping[str, Any]) -> _Word:
    return _Word(_TYPES[port["dtype"]])


def _dims(port: Mapping[str, Any], most: int) -> list[int]:
    return [n if isinstance(n, int) else -1 for n in port["shape"][bool(most) :]]


def _warm_up_dims(figures: Mapping[str, Any], port: Mapping[str, Any], most: int) -> list[int]:
    return [
        size if size >= 0 else max(1, _span(figures, port["name"], axis)[1])
        for axis, size in enumerate(_dims(port, most), start=bool(most))
    ]


def _dynamic_batching(document: Mapping[str, Any], most: int) -> dict[str, Any] | None:
    """Choose the batch of the largest measured throughput, None if larger batches do not pay.

    Requests wait for half of its latency at most.
    """
    cases = [case for one in document.get("measured", ()) for case in one["cases"].values()]
    p50_ms = {case["batch"]: case["p50_ms"] for case in cases if 1 <= (case["batch"] or 0) <= most}
    if not p50_ms:
        return {}
    best = max(p50_ms, key=lambda batch: batch / p50_ms[batch])
    least = min(p50_ms)
    if best / p50_ms[best] < _FASTER * least / p50_ms[least]:
        return None if len(p50_ms) > 1 else {}
    delay = round(500 * p50_ms[best])
    return {"preferred_batch_size": [best], "max_queue_delay_microseconds": delay}


def _capability(engine: ServedEngine) -> str:
    return str(engine.figures["built_with"].get("compute_capability", ""))


def _latency(engine: ServedEngine) -> tuple[float, str]:
    times = [one.p50_ms for one in engine.variant.measured]
    return min(times, default=float("inf")), engine.variant.name


def _text_format(message: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Write a message in the text format of protobuf."""
    for name, value in message.items():
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                yield f"{indent}{name} {{"
                yield from _text_format(item, f"{indent}  ")
                yield f"{indent}}}"
            else:
                is_plain = isinstance(item, _Word | bool | int)
                text = str(item).lower() if isinstance(item, bool) else str(item)
                yield f"{indent}{name}: {text if is_plain else json.dumps(item)}"
