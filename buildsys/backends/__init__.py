"""Registry of backends; a backend's library is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from buildsys.backends.interface import Backend
from buildsys.errors import StageError, Unavailable
from buildsys.system.engine_environment import INSTALL, visible_gpus, why_no_gpu
from buildsys.system.interpreters.toolchain import Toolchain

_CUDA = {"cuda.bindings.driver": "cuda-bindings"}
_REGISTRY = {  # backend -> its libraries: module -> name in messages
    "onnxruntime": {"onnxruntime": "onnxruntime"},
    "tensorrt": {"tensorrt": "tensorrt", **_CUDA},
    "tensorrt_rtx": {"tensorrt_rtx": "tensorrt_rtx", **_CUDA},
}
_BUILDS_ON_GPU = ("tensorrt",)  # installing its library elsewhere is of no use


def load_backend(name: str, toolchain: Toolchain | None = None) -> Backend:
    """Import and return a backend.

    This interpreter belongs to ``toolchain``, if given.
    Raises: Unavailable: one of its libraries is not installed or cannot be loaded.
    """
    libraries = _REGISTRY.get(name)
    if libraries is None:
        raise StageError(f"there is no backend {name!r}", f"use one of {', '.join(_REGISTRY)}")
    where = f" in the toolchain {toolchain.name}" if toolchain is not None else ""
    install, packages = INSTALL[name]
    if toolchain is not None:
        install = f"{toolchain.pip} {packages}"
    for module, library in libraries.items():
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                text = f"the library {library} is not installed{where}"
                if name in _BUILDS_ON_GPU and not visible_gpus():
                    text = f"{text}, and {why_no_gpu()}"
                    install = f"on a machine with an NVIDIA GPU: {install}"
            else:
                missing = f"the module {error.name}, which is not installed"
                text = f"the library {library}{where} needs {missing}"
            raise Unavailable(text, install) from error
        except (
            ImportError,
            OSError,
            RuntimeError,
        ) as error:  # a shared library is missing or does not fit
            text = f"the library {library}{where} cannot be loaded: {error}"
            raise Unavailable(text, install) from error
    return cast(Backend, import_module(f"buildsys.backends.{name}.backend"))
