"""TensorRT-RTX: engines for RTX GPUs, built with or without a GPU.

Its networks are always strongly typed: an engine's precision is that of the ONNX types.
"""

from functools import partial

import tensorrt_rtx

from buildsys.backends.interface import Options
from buildsys.backends.tensorrt.build import build_engine
from buildsys.backends.tensorrt.common_backend import TensorRtBackend
from buildsys.backends.tensorrt.library import library_of

RUN_OPTIONS: Options = {"runtime_cache": False}
_LIBRARY = library_of(tensorrt_rtx)
_BACKEND = TensorRtBackend(_LIBRARY)

prepare = _BACKEND.prepare
build = partial(build_engine, _LIBRARY)
describe = _BACKEND.describe
load = _BACKEND.load
device = _BACKEND.device
