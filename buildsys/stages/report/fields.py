"""Fields of manifests about the report."""

from typing import Literal

from buildsys.manifest.schema.base import Spec, section


class ReportSpec(Spec):
    """Files of the report."""

    formats: tuple[Literal["json", "markdown", "html"], ...] = ("json", "markdown", "html")
    """Files of the report besides report.json."""


class Sections(Spec):
    """The section of the stage."""

    report: ReportSpec = section()
