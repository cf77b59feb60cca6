"""buildsys import: propose the manifests of a folder of ONNX files.

It is not in ``import.py``, as a keyword of Python is no module name.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path

from buildsys.cli.command import Options, ProjectCommand, print_lines
from buildsys.cli.commands.new import inside_project, shown_file, try_model, write_manifest
from buildsys.cli.worker_pool import open_pool
from buildsys.errors import StageError, UsageError
from buildsys.manifest.project import empty_project
from buildsys.manifest.yaml_reader import MAX_BYTES
from buildsys.system.files import read_limited

_LONGEST_STEM = 90  # characters, without a number


class Import(ProjectCommand):
    """Propose the manifests of a folder of ONNX files."""

    doc_purpose = "write the manifests of all ONNX files in a folder"
    doc_usage = "FOLDER"
    doc_description = (
        "does what `new` does for each file; the model has the name of its file. An existing\n"
        "manifest is kept. The exit code is 2 if a file cannot be described"
    )

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Write one manifest per file; return 2 if one fails."""
        del options
        if len(names) != 1:
            raise UsageError("import takes one folder", "for example `doit import networks`")
        folder, project = inside_project(root, names[0]), empty_project(root)
        networks = _networks(folder, (project.build, project.state))
        if not networks:
            hint = "name a folder of the project with ONNX files"
            raise UsageError(f"there are no ONNX files in {names[0]}", hint)
        code = 0
        with open_pool(project.state) as pool:
            for network, model in zip(networks, _model_names(networks, folder), strict=True):
                file = project.configs / "models" / f"{model}.yaml"
                source = {"onnx": network.relative_to(root).as_posix()}
                if os.path.lexists(file):
                    print_lines([f"kept {shown_file(file)}{_other_source(file, source['onnx'])}"])
                    continue
                try:
                    if not inside_project(root, str(network)).is_file():
                        raise StageError("it is not a file", "remove it")
                    found = try_model(pool, project, model, source, {})
                    write_manifest(project, file, model, found)
                    print_lines([f"wrote {shown_file(file)}"])
                except (StageError, UsageError) as error:
                    code = StageError.exit_code
                    print_lines([f"failed {source['onnx']}: {error}"])
        return code


def _networks(folder: Path, left_out: Collection[Path]) -> list[Path]:
    """Return a folder's ONNX files, without builds and hidden folders."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if name[0] != "." and Path(place, name) not in left_out
        ]
        found += [Path(place, name) for name in names if name.endswith(".onnx")]
    return sorted(found)


def _model_names(networks: Sequence[Path], folder: Path) -> list[str]:
    """Return unique names: of the file, or of folder and file."""
    stems = Counter(network.stem for network in networks)
    found: list[str] = []
    for network in networks:
        part = network.stem
        if stems[part] > 1:
            part = str(network.relative_to(folder).with_suffix(""))
        name = re.sub(r"[^A-Za-z0-9_.+-]+", "-", part, flags=re.ASCII).lstrip("_.+-") or "model"
        name = name[:_LONGEST_STEM]
        number = next(n for n in count(1) if (name if n == 1 else f"{name}-{n}") not in found)
        found.append(name if number == 1 else f"{name}-{number}")
    return found


def _other_source(file: Path, network: str) -> str:
    """Return a note if a manifest does not name an ONNX file."""
    try:
        is_named = network in read_limited(file, MAX_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        is_named = False
    return "" if is_named else f", which does not name {network}"
