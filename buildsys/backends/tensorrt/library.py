"""A loaded TensorRT: its module, version and API generation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from buildsys.errors import Unavailable

TRT_8, TRT_10, TRT_11, RTX = "TensorRT 8.6", "TensorRT 10", "TensorRT 11", "TensorRT-RTX"
GENERATIONS = (TRT_8, TRT_10, TRT_11, RTX)
SINCE_10, UNTIL_10 = (TRT_10, TRT_11, RTX), (TRT_8, TRT_10)
FEATURES = {  # the generations with each
    "calibrators": UNTIL_10,
    "timing caches": (TRT_8, TRT_10, TRT_11),
    "plugins in Python": SINCE_10,
    "bundled plugins": (TRT_8, TRT_10, TRT_11),
    "local functions": SINCE_10,
    "parser in a library": (RTX,),
    "names of all refused nodes": SINCE_10,
    "builds for other GPUs": (RTX,),
}
_NEWEST_OPSETS = {TRT_8: 17}  # that its parser documents; it reads some nodes of later ones
_OLDEST = (8, 6)


@dataclass(frozen=True)
class Library:
    """A loaded TensorRT."""

    trt: Any  # the module ``tensorrt`` or ``tensorrt_rtx``; its bindings have no types
    version: tuple[int, ...]

    @property
    def generation(self) -> str:
        """Return the API generation, one of ``GENERATIONS``."""
        if self.trt.__name__ == "tensorrt_rtx":
            return RTX
        return TRT_8 if self.version < (10,) else TRT_10 if self.version < (11,) else TRT_11

    def has(self, feature: str) -> bool:
        """Return True if this generation has one of ``FEATURES``."""
        return self.generation in FEATURES[feature]

    @property
    def newest_opset(self) -> int | None:
        """Return the newest opset that its parser knows, None if it knows all."""
        return _NEWEST_OPSETS.get(self.generation)

    @property
    def title(self) -> str:
        """Return the name for messages."""
        return RTX if self.generation == RTX else "TensorRT"

    @property
    def release(self) -> str:
        """Return name and version, e.g. ``TensorRT 8.6.0``."""
        return f"{self.title} {'.'.join(map(str, self.version[:3]))}"


def library_of(module: ModuleType) -> Library:
    """Return the library of a module.

    Raises: Unavailable: it is older than TensorRT 8.6.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", str(module.__version__))[:4])
    library = Library(module, version)
    if library.generation != RTX and version < _OLDEST:
        raise Unavailable(f"{library.release} is too old", "install TensorRT 8.6, 10 or 11")
    return library
