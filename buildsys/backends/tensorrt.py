"""TensorRT 8.6, 10 and 11: engines for the GPU that builds them. See ``buildsys.backends.trt``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorrt

from buildsys.backends.trt.backend import TensorRtBackend
from buildsys.backends.trt.library import library_of

if TYPE_CHECKING:
    from buildsys.backends import tensorrt as _this_module
    from buildsys.backends.base import Backend

    _CONFORMS: Backend = _this_module

_BACKEND = TensorRtBackend(library_of(tensorrt))

prepare = _BACKEND.prepare
unsupported = _BACKEND.unsupported
build = _BACKEND.build
describe = _BACKEND.describe
load = _BACKEND.load
unload = _BACKEND.unload
device = _BACKEND.device
merge_timing_caches = _BACKEND.merge_timing_caches
