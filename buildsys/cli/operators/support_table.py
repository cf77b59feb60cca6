"""The table of operators that `doit ops` answers from: made by a process that loads torch, remembered per versions."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from buildsys.cli.repro.two_builds import child_environment
from buildsys.errors import StageError
from buildsys.system.files import replace_file
from buildsys.system.versions import python_version, tool_versions

_LIBRARIES = ("torch", "torchvision", "onnx", "onnxscript", "onnxruntime", "tensorrt_rtx")
_MAKER = "buildsys.backends.operator_support"
_CODE = (
    "backends/operator_support/*.py",
    "backends/onnxruntime/kernels.py",
)  # what reads the registries
_KEPT = 4  # tables of other sets of versions: somebody tries one of two


def library_versions() -> dict[str, str]:
    """Return the versions that a table is for."""
    return {"python": python_version(), **tool_versions(_LIBRARIES)}


def operator_table(state: Path) -> dict[str, Any]:
    """Return the table for the libraries that are installed here, out of the state folder where it is known.

    Raises: StageError: it cannot be made, because torch or onnx cannot be loaded.
    """
    folder = state / "operators"
    file = folder / f"{_key()}.json"
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return known
    except (OSError, ValueError):  # never made, or cut off
        table = _make_table()
    try:
        _keep(file, json.dumps(table))
    except OSError as error:
        sys.stderr.write(f"the table is not kept: {file}: {error.strerror}\n")
    return table


def _key() -> str:
    package = Path(__file__).parents[2]
    code = [path.read_bytes() for pattern in _CODE for path in sorted(package.glob(pattern))]
    digests = [hashlib.sha256(content).hexdigest() for content in code]
    return hashlib.sha256(
        json.dumps([sorted(library_versions().items()), digests]).encode()
    ).hexdigest()[:16]


def _make_table() -> dict[str, Any]:
    sys.stderr.write("reading the registries of the libraries (once for these versions) …\n")
    sys.stderr.flush()
    done = subprocess.run(
        [sys.executable, "-m", _MAKER],
        env=child_environment(),
        cwd=tempfile.gettempdir(),  # a project may hold a torch.py of its own
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        table: dict[str, Any] = json.loads(done.stdout)
        return table
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise StageError(
        f"the table of operators cannot be made: {last}", "`doit ops` needs torch and onnx"
    )


def _keep(file: Path, text: str) -> None:
    replace_file(file, text.encode())
    others = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in others[_KEPT:]:
        old.unlink(missing_ok=True)
