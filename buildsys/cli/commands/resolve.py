"""doit resolve: the manifest of a model with all defaults."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.command import Options, ProjectCommand
from buildsys.cli.session import Session
from buildsys.manifest.project import load_project
from buildsys.manifest.resolved_yaml import resolved_text
from buildsys.system.printable import printable


class Resolve(ProjectCommand):
    """Print a resolved manifest."""

    doc_purpose = "print a model's manifest with all defaults, and where each value is set"
    doc_usage = "MODEL"

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Print the manifest as YAML."""
        del options
        session = Session(load_project(root))
        model = session.one_model("resolve", names)
        sys.stdout.write(printable(resolved_text(session.project.models[model])))
        return 0
