"""What calibration and quantization use of a manifest, and where the values of inputs come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from buildsys.plan.artifacts import Resolved
from buildsys.plan.surgery_points import AFTER_SIMPLIFY, dims_at, inputs_at
from buildsys.plan.tensorrt_typing import is_implicit

QUANTIZED = ("int8", "fp8")  # precisions that need calibration
_TOOLS = {"int8": "onnxruntime", "fp8": "builtin"}  # unless the manifest names one


def quantized_engines(spec: Resolved) -> list[Mapping[str, Any]]:
    """Return the engines that need calibration."""
    return [
        engine
        for engine in spec["engines"]
        if engine["precision"] in QUANTIZED or is_implicit(engine)
    ]


def image_tools(spec: Resolved) -> tuple[str, ...]:
    """Return what reads the images of golden inputs."""
    return tuple(
        tool
        for tool in values_tools(t["data"] for t in spec["inputs"].values())
        if tool == "pillow"
    )


def calibration_data(spec: Resolved) -> dict[str, Any]:
    """Return where the values of each input of the simplified graph come from in calibration."""
    given, inputs = spec["calibration"]["data"], spec["inputs"]
    names = inputs_at(spec, AFTER_SIMPLIFY)
    return {
        name: given[name] if name in given else inputs.get(name, {}).get("data") for name in names
    }


def calibration_options(spec: Resolved) -> dict[str, Any]:
    """Return what the stage calibrate uses: the data, how it is drawn, and the shape of a batch."""
    section, inputs = spec["calibration"], dict(inputs_at(spec, AFTER_SIMPLIFY))
    used = {field: section[field] for field in ("algorithm", "batches", "seed")}
    if section["algorithm"] == "percentile":
        used["percentile"] = section["percentile"]
    dims = {name: span["opt"] for name, span in dims_at(spec, AFTER_SIMPLIFY).items()}
    if section["batch_size"] is not None:
        first = (tensor["shape"][0] for tensor in inputs.values() if tensor["shape"])
        dims |= {name: section["batch_size"] for name in first if isinstance(name, str)}
    return {
        "calibration": {**used, "data": calibration_data(spec)},
        "inputs": inputs,
        "dims": dims,
        "exclude": list(spec["quantize"]["exclude"]),
    }


def quantize_options(spec: Resolved, precision: str) -> dict[str, Any]:
    """Return the settings of the quantizers of one precision."""
    section = spec["quantize"]
    tool = section["tool"] or _TOOLS[precision]
    return {**section, "tool": tool, "algorithm": spec["calibration"]["algorithm"]}


def values_sources(entries: Iterable[Mapping[str, Any] | None]) -> tuple[str, ...]:
    """Return the user's files that values of inputs come from; a folder of images ends in a slash."""
    files = []
    for data in entries:
        found = data or {}
        files += [found["npz"]] if found.get("npz") else []
        files += [found["python"].rpartition(":")[0]] if found.get("python") else []
        files += [f"{found['images'].rstrip('/')}/"] if found.get("images") else []
    return tuple(dict.fromkeys(files))


def values_tools(entries: Iterable[Mapping[str, Any] | None]) -> tuple[str, ...]:
    """Return what reads images and runs the user's own functions."""
    kinds = {kind for data in entries for kind in data or ()}
    return (
        *(("pillow",) if "images" in kinds else ()),
        *(("python",) if "python" in kinds else ()),
    )
