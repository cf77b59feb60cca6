"""Preprocessing and labels of a classifier's trained weights, for ``buildsys new``."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Any, NamedTuple

from torch import nn

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")


class TrainedWeights(NamedTuple):
    """Facts about the training images of weights."""

    size: int  # height and width
    preprocess: Mapping[str, Any]  # of the manifest
    labels: Mapping[str, Any] | None  # of the manifest
    classes: int

    def add_to(self, interface: Mapping[str, Any]) -> dict[str, Any]:
        """Return the interface with fields for its inputs and outputs."""
        inputs, outputs = interface["inputs"], interface["outputs"]
        square = [3, self.size, self.size]
        if [tensor["shape"][1:] for tensor in inputs.values()] != [square]:
            return {**interface}
        inputs = {name: {**one, "preprocess": self.preprocess} for name, one in inputs.items()}
        outputs = {
            name: {**one, "labels": self.labels}
            if (one["shape"] or [None])[-1] == self.classes
            else one
            for name, one in outputs.items()
        }
        return {**interface, "inputs": inputs, "outputs": outputs}


def trained_weights(source: Mapping[str, Any], module: nn.Module) -> TrainedWeights | None:
    """Return the default weights of a classifier by name, None if nothing is known."""
    if "torchvision" in source:
        return _of_torchvision(source["torchvision"])
    return _of_timm(module) if "timm" in source else None


def _of_torchvision(name: str) -> TrainedWeights | None:
    from torchvision import models

    versions = models.get_model_weights(name).__members__
    weights = versions.get("DEFAULT")
    classes = weights.meta.get("categories") if weights else None
    preset: Any = weights.transforms() if weights else None
    if not classes or type(preset).__name__ != "ImageClassification":
        return None
    fields = _fields(preset.resize_size[0], preset.interpolation.value, preset.mean, preset.std)
    if fields is None:
        return None
    labels = {"torchvision": str(weights)}
    return TrainedWeights(preset.crop_size[0], fields, labels, len(classes))


def _of_timm(module: nn.Module) -> TrainedWeights | None:
    config: Mapping[str, Any] = getattr(module, "pretrained_cfg", None) or {}
    size = config.get("input_size") or (0, 0, 1)
    share = config.get("crop_pct")
    if size[-1] != size[-2] or not share or config.get("crop_mode", "center") != "center":
        return None
    fields = _fields(
        floor(size[-1] / share), config.get("interpolation", ""), config["mean"], config["std"]
    )
    if fields is None:
        return None
    return TrainedWeights(size[-1], fields, None, config.get("num_classes") or 0)


def _fields(resize: int, interpolation: str, mean: Any, std: Any) -> dict[str, Any] | None:
    """Return `preprocess` without defaults, None for another interpolation."""
    if interpolation not in _INTERPOLATIONS:
        return None
    chosen = {} if interpolation == "bilinear" else {"interpolation": interpolation}
    return {"resize": resize, **chosen, "mean": list(mean), "std": list(std)}
