"""Models of timm, by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.models.sources.source_module import SourceModule, filled
from buildsys.models.user_code import import_library, reraise_as_stage_error
from buildsys.system.printable import did_you_mean


def make(source: Mapping[str, Any], project: Path) -> SourceModule:
    """Build a model of timm.

    Raises: StageError: it is unknown or fails, or its weights are not available.
    """
    timm = import_library("timm", project)
    name = source["timm"]
    if not timm.is_model(name):
        models = timm.list_models()
        hint = did_you_mean(name.partition(".")[0], models, "timm.list_models() lists them")
        raise StageError(f"timm has no model {name}", hint)
    with reraise_as_stage_error(f"timm.create_model({name!r}) failed", project):
        module = timm.create_model(name, **{**source["kwargs"], "pretrained": False})
    return filled(module, source, project, name)
