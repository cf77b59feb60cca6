"""The manifest of one model as frozen pydantic models.

The JSON Schema for editors is generated from these models, so users read a field's description
while typing. Nothing here reads a file or imports a library used by a stage.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import AfterValidator, Field, ValidationInfo, create_model

from buildsys.manifest.backend_choices import base_precision
from buildsys.manifest.problem import show_value
from buildsys.manifest.schema.base import (
    Name,
    NeedsSpec,
    OneOf,
    Seconds,
    Spec,
    Stage,
    Stages,
    TensorName,
    Word,
)
from buildsys.manifest.schema.engines import EngineBase, engine_spec
from buildsys.manifest.schema.files import check_listed, refusal
from buildsys.manifest.schema.network import CallSpec, DimSpec, InputSpec, OutputSpec
from buildsys.manifest.schema.source import Source
from buildsys.manifest.value_ranges import default_high
from buildsys.manifest.workspace import Workspace
from buildsys.stages.table import STAGES
from buildsys.system.backend_registry import backend_names

if TYPE_CHECKING:
    Engine = EngineBase
else:
    _ENGINES = Union[tuple(map(engine_spec, backend_names()))]  # noqa: UP007 - of a variable
    Engine = Annotated[_ENGINES, OneOf(backend_names(), field="backend")]


def _check_inputs(inputs: dict[str, InputSpec]) -> dict[str, InputSpec]:
    if not inputs:
        hint = "a graph without inputs computes constants, which need no engine"
        raise refusal("a model has at least one input", hint)
    return inputs


def _check_read(name: str, info: ValidationInfo) -> str:
    if not name.startswith("$"):
        return check_listed(name, info)
    if not name[1:].isidentifier() or not name.isascii():
        text = f"{show_value(name)} names no environment variable"
        raise refusal(text, "write $NAME, with letters, digits and _")
    return name


class _ModelFields(Spec):
    """The fields of a model that belong to no stage."""

    model: Name = Field(description="Name of the model in targets and paths.")
    description: str = Field("", description="One sentence about the model, for the report.")
    owner: str = Field("", max_length=200)
    """Person or team to ask; `--owner` selects models by it."""
    tags: tuple[Name, ...] = Field((), description="Labels that `--tag` selects models by.")
    source: Source | None = None
    """Origin of the network, such as torchvision, python or onnx."""
    inputs: Annotated[dict[TensorName, InputSpec], AfterValidator(_check_inputs)] = Field({})
    """Inputs in graph order."""
    call: CallSpec | None = None
    """Arguments of forward(); default: the inputs in order, or by `keyword`."""
    outputs: dict[TensorName, OutputSpec] = Field({})
    """Outputs in order; default: as returned by the model."""
    dims: dict[Word, DimSpec] = Field({}, description="Ranges of the dynamic dimensions.")
    reads: tuple[Annotated[str, AfterValidator(_check_read)], ...] = ()
    """Files, folders/ and $VARIABLES that the user's code reads."""
    strict_reads: bool = False
    """Fail if the user's code reads anything undeclared."""
    needs: NeedsSpec | None = None
    """What a machine must have for all stages but the report."""
    engines: tuple[Engine, ...] = Field((), description="Engines to build, verify and benchmark.")
    timeout: dict[Stage, Seconds] = Field({}, description="Limit by stage, e.g. {export: 10min}.")
    flaky: Stages = ()
    """Stages that a nightly run repeats once after a failure; true: all."""


# those of the stages follow in their order
_SECTIONS = [import_module(f"{s.package}.fields").Sections for s in STAGES if s.sections]
ModelSpec = create_model(
    "ModelSpec",
    __base__=(*reversed(_SECTIONS), _ModelFields),
    __module__=__name__,
    __doc__="One model, after extends, matrix, defaults and engine presets have been applied.",
)


def model_fields(written: Mapping[str, Any], workspace: Workspace | None = None) -> dict[str, Any]:
    """Validate the fields of a model and the files that they name; fill in all defaults.

    Raises: ValidationError: all errors of the model.
    """
    fields: dict[str, Any] = ModelSpec.model_validate(written, context=workspace).model_dump(
        mode="json", by_alias=True
    )
    for tensor, declared in fields["inputs"].items():
        data = written["inputs"][tensor].get("data") or {}
        if data.get("random") == "integers" and data.get("high") is None:
            declared["data"]["high"] = default_high(declared["dtype"])
    used = json.dumps([fields["inputs"], fields["surgery"]])  # shared files may declare more
    fields["dims"] = {name: dim for name, dim in fields["dims"].items() if f'"{name}"' in used}
    for engine in fields["engines"]:
        if limits := engine["tolerance"]:  # those that it does not set are those of its precision
            limits |= {
                name: limit
                for name, limit in fields["verify"][base_precision(engine)].items()
                if limits[name] is None
            }
    return fields
