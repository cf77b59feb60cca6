"""Kinds of code, told by its file: the user's, libraries, the interpreter, ours."""

import os
import sysconfig
from functools import cache
from pathlib import Path

from buildsys.system.files import in_library

USER, LIBRARY, OURS, NEUTRAL = "user", "library", "ours", "neutral"  # kinds of code
# a toolchain's interpreter imports this package through a link
OWN_CODE = tuple(
    {f"{file.parents[1]}{os.sep}" for file in (Path(__file__), Path(__file__).resolve())}
)
STANDARD = tuple({
    f"{os.path.realpath(folder)}{os.sep}"
    for name in ("stdlib", "platstdlib")
    if (folder := sysconfig.get_path(name))
} | {f"{os.path.dirname(os.__file__)}{os.sep}"})  # fmt: skip # noqa: PTH120
GENERATED = ("/torchinductor_", "/.triton/", "/.cache/torch/kernels/", "/fontconfig/")


@cache
def code_kind(file: str) -> str:
    """Tell the user's code from other code by its file, as in ``co_filename``."""
    # exec; modules of the import system; generated code
    if file[:1] == "<" or any(part in file for part in GENERATED):
        return NEUTRAL
    if file.startswith(OWN_CODE):
        return OURS
    if in_library(file):
        return LIBRARY
    return NEUTRAL if file.startswith(STANDARD) else USER


def is_user_code(file: str) -> bool:
    """Check for a file of the user's code, inside or outside of the project."""
    return code_kind(file) == USER


@cache
def display_name(file: str, project: Path) -> str:
    """Name a file relative to the project, or absolutely if that is shorter."""
    for root in (project, project.resolve()):
        if Path(file).is_relative_to(root):
            return str(Path(file).relative_to(root))
    return min(os.path.relpath(file, project.resolve()), file, key=len)
