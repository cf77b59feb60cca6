"""doit schema: JSON Schemas of manifests, for editors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.command import Options, ProjectCommand, print_lines
from buildsys.cli.project_root import shown_path
from buildsys.errors import UsageError


class Schema(ProjectCommand):
    """Write the JSON Schemas."""

    doc_purpose = "write the JSON Schemas for editors into configs/schema"

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Write the schemas, even for wrong manifests."""
        del options
        if names:
            raise UsageError("schema takes no arguments", "type it without a name")
        # `doit help` imports every command; this takes 0.4 s
        from buildsys.manifest.json_schema import write_schemas

        folder = root / (os.environ.get("BUILDSYS_CONFIGS") or "configs") / "schema"
        print_lines(f"wrote {shown_path(path)}" for path in write_schemas(folder))
        return 0
