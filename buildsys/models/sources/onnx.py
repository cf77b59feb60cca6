"""ONNX models: files, and callables returning one."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from buildsys.errors import StageError
from buildsys.models.user_code import load_callable, project_file, reraise_as_stage_error
from buildsys.onnx_graphs.onnx_file import load_model, refuse_expansion, tensors_of
from buildsys.onnx_graphs.quantizers import check_scales
from buildsys.system.user_modules import split_reference


def load_onnx(
    source: Mapping[str, Any], project: Path, *, external_data: bool = True
) -> onnx.ModelProto:
    """Load the model of an ``onnx`` source, perhaps without the weights next to a file.

    Raises: StageError: the file cannot be read, or the callable fails or returns something else.
    """
    name = source["onnx"]
    if not is_callable(source):
        model = load_model(project_file(name, project), external_data=external_data)
        check_scales(model, name)
        return model
    random.seed(source["seed"])
    np.random.seed(source["seed"] % 2**32)
    make = load_callable(name, project)
    with reraise_as_stage_error(f"{name} failed", project):
        model = make(**source["kwargs"])
    if not isinstance(model, onnx.ModelProto):
        raise StageError(
            f"{name} returned {type(model).__name__}, not an onnx.ModelProto",
            changes=[f"source: {{python: {json.dumps(name)}}}"],
        )
    if outside := [t for t in tensors_of(model) if t.data_location == TensorProto.EXTERNAL]:
        raise StageError(
            f"{name} returned a model without its external data, such as {outside[0].name}",
            "load them: onnx.external_data_helper.load_external_data_for_model(model, FOLDER)",
        )
    refuse_expansion(model, name)
    check_scales(model, name)
    return model


def is_callable(source: Mapping[str, Any]) -> bool:
    """Check for a callable."""
    return bool(split_reference(source["onnx"])[1])
