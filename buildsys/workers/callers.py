"""Callers of a function: the user's code, libraries, buildsys.

The standard library reads on behalf of its caller, and so does generated code.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from buildsys.system.files import in_library

_USER, _LIBRARY, _OURS, _NEUTRAL = "user", "library", "ours", "neutral"  # kinds of code
# a toolchain's interpreter imports this package through a link
OWN_CODE = tuple(
    {f"{file.parents[1]}{os.sep}" for file in (Path(__file__), Path(__file__).resolve())}
)
STANDARD = tuple({
    f"{os.path.realpath(folder)}{os.sep}"
    for name in ("stdlib", "platstdlib")
    if (folder := sysconfig.get_path(name))
} | {f"{os.path.dirname(os.__file__)}{os.sep}"})  # fmt: skip # noqa: PTH120
CACHES = ("/torchinductor_", "/.triton/", "/.cache/torch/kernels/", "/fontconfig/")


class Caller(NamedTuple):
    """The place of a call in user code."""

    line: str = ""  # file:line of the innermost user code
    direct: bool = True  # only the standard library is in between
    ours: bool = False  # buildsys is on the stack up to there


class Callers:
    """Finds user code on the stack, with paths relative to ``roots``."""

    def __init__(self, roots: tuple[str, ...], neutral: str) -> None:
        """Prepare. ``neutral`` is the file with the functions that others call."""
        self._roots = roots
        self._kinds = {neutral: _NEUTRAL}  # file -> kind of its code

    def find(self, frame: FrameType | None) -> Caller:
        """Find the innermost line of user code, from a frame outwards."""
        direct, ours = True, False
        while frame is not None:
            file = frame.f_code.co_filename
            kind = self._kinds.get(file)
            if kind is None:
                kind = self._kinds[file] = _kind_of(file)
            if kind is _USER:
                for root in self._roots:
                    file = file.removeprefix(root)
                return Caller(f"{file}:{frame.f_lineno}", direct, ours)
            if kind is not _NEUTRAL:
                direct = False
            ours = ours or kind is _OURS
            frame = frame.f_back
        return Caller("", direct, ours)


def _kind_of(file: str) -> str:
    # exec; modules of the import system; generated code
    if file[:1] == "<" or any(part in file for part in CACHES):
        return _NEUTRAL
    if file.startswith(OWN_CODE):
        return _OURS
    if in_library(file):
        return _LIBRARY
    return _NEUTRAL if file.startswith(STANDARD) else _USER
