"""Class names of trained weights of torchvision."""

from __future__ import annotations

from buildsys.errors import StageError
from buildsys.system.suggestions import nearest
from buildsys.workers.job import Job, StageResult


def run(job: Job) -> StageResult:
    """List the categories of weights by their name; download nothing.

    Raises: StageError: torchvision has no such weights, or they have no categories.
    """
    return StageResult(
        figures={"labels": {name: {"names": categories(name)} for name in job.options["weights"]}}
    )


def categories(name: str) -> list[str]:
    """List the categories of weights such as ``ResNet50_Weights.IMAGENET1K_V2``."""
    from torchvision import models

    builder, _, version = name.partition(".")
    every = {models.get_model_weights(model).__name__: model for model in models.list_models()}
    if builder not in every:
        near = nearest(builder, every, count=1)
        hint = f"did you mean {near[0]}?" if near else "torchvision.models lists them"
        raise StageError(f"torchvision has no weights {builder}", hint)
    versions = models.get_model_weights(every[builder]).__members__
    if version not in versions:
        raise StageError(f"{builder} has no {version}", f"it has {', '.join(versions)}")
    names = versions[version].meta.get("categories")
    if not names:
        raise StageError(f"{name} has no categories", "name the classes in a file")
    return list(names)
