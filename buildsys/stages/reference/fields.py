"""Fields of manifests about golden outputs of another framework."""

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from buildsys.manifest.schema.base import Spec, section
from buildsys.manifest.schema.files import ProjectFile

_FILES_SCHEMA = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
_Files = Annotated[
    tuple[ProjectFile, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    WithJsonSchema({"anyOf": _FILES_SCHEMA}),
]


class ReferenceSpec(Spec):
    """Golden cases in files, beside the source's."""

    npz: _Files = ()
    """Files with an array per input and output, computed by another framework."""


class Sections(Spec):
    """The section of the stage."""

    reference: ReferenceSpec = section()
