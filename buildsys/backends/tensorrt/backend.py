"""TensorRT 8.6, 10 and 11: engines for the GPU of the build."""

from __future__ import annotations

from functools import partial

import tensorrt

from buildsys.backends.interface import Options
from buildsys.backends.tensorrt.build import build_or_refit
from buildsys.backends.tensorrt.common_backend import TensorRtBackend
from buildsys.backends.tensorrt.library import library_of
from buildsys.backends.tensorrt.version_adapter import check_refit

RUN_OPTIONS: Options = {"cuda_graphs": True}
_LIBRARY = library_of(tensorrt)
_BACKEND = TensorRtBackend(_LIBRARY)


def prepare(options: Options) -> None:
    """Check the engine's fields, as the interface describes."""
    check_refit(_LIBRARY, options)
    _BACKEND.prepare(options)


build = partial(build_or_refit, _LIBRARY)
describe = _BACKEND.describe
load = _BACKEND.load
device = _BACKEND.device
