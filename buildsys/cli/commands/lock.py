"""buildsys lock: the environment of the project's builds, in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.command import JSON, Options, ProjectCommand, print_answer, program_of
from buildsys.cli.environment_lock import FILE, current_environment, differences, read_lock
from buildsys.errors import UsageError
from buildsys.manifest.project import load_project
from buildsys.report.formatting import plural
from buildsys.system.files import replace_file
from buildsys.system.interpreters.toolchain import locate_toolchain


class Lock(ProjectCommand):
    """Record the present environment."""

    doc_purpose = f"record libraries, variables and devices in {FILE}, for doctor to compare"
    options = (JSON,)

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Write the lock file and print the differences from the one before."""
        program = program_of(self)
        if names:
            raise UsageError("lock takes no names", f"it writes {FILE} for the whole project")
        project = load_project(root, remember=False)
        toolchains = [
            locate_toolchain(name, python, env.items(), project.root, os.environ)
            for name, (python, env) in project.toolchains().items()
        ]
        environment, problems = current_environment(toolchains)
        file = root / FILE
        try:
            before = read_lock(file)
        except UsageError:  # damaged: replaced
            before = None
        changes = list(differences(before, environment)) if before else []
        document = environment.as_json()
        replace_file(file, json.dumps(document, indent=2).encode() + b"\n")
        packages = plural(len(environment.packages), "package")
        count = plural(len(environment.toolchains), "toolchain")
        lines = [f"{one}; it is left out" for one in problems]
        lines += [f"changed: {one.name} {one.text}" for one in changes]
        lines.append(f"wrote {FILE}: {environment.python}, {packages}, {count}")
        lines.append(f"`{program} doctor` compares with it; keep it in version control")
        print_answer(options, document, lines)
        return 0
