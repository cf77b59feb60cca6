"""Fields of manifests about gates."""

from buildsys.manifest.schema.base import Spec
from buildsys.manifest.schema.engines import GatesSpec


class Sections(Spec):
    """The section of the stage."""

    gates: GatesSpec | None = None
    """Limits on the figures of every engine, against earlier builds."""
