"""TensorRT 8.6, 10 and 11: engines for the GPU of the build."""

from functools import partial

import tensorrt

from buildsys.backends.interface import Options
from buildsys.backends.tensorrt.build import build_or_refit
from buildsys.backends.tensorrt.common_backend import TensorRtBackend
from buildsys.backends.tensorrt.library import library_of

RUN_OPTIONS: Options = {"cuda_graphs": True}
_LIBRARY = library_of(tensorrt)
_BACKEND = TensorRtBackend(_LIBRARY)

prepare = _BACKEND.prepare
build = partial(build_or_refit, _LIBRARY)
describe = _BACKEND.describe
load = _BACKEND.load
device = _BACKEND.device
