"""Registry of backends; a backend's library is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, cast

from buildsys.backends.interface import Backend
from buildsys.errors import StageError, Unavailable
from buildsys.system.engine_environment import visible_gpus, why_no_gpu
from buildsys.system.interpreters.toolchain import Toolchain


class _Entry(NamedTuple):
    libraries: dict[str, str]  # module -> its name in messages
    install: str  # installs them into our own interpreter
    packages: str  # to install into a toolchain, where buildsys is not a package
    builds_on_gpu: bool = False  # installing it elsewhere is of no use


_CUDA = {"cuda.bindings.driver": "cuda-bindings"}
_REGISTRY = {
    "onnxruntime": _Entry({"onnxruntime": "onnxruntime"}, "pip install onnxruntime", "onnxruntime"),
    "tensorrt": _Entry(
        {"tensorrt": "tensorrt", **_CUDA},
        "pip install 'buildsys[tensorrt]'",
        "tensorrt cuda-bindings",
        builds_on_gpu=True,
    ),
    "tensorrt_rtx": _Entry(
        {"tensorrt_rtx": "tensorrt_rtx", **_CUDA},
        "pip install 'buildsys[rtx]'",
        "tensorrt-rtx cuda-bindings",
    ),
}


def load_backend(name: str, toolchain: Toolchain | None = None) -> Backend:
    """Import and return a backend.

    This interpreter belongs to ``toolchain``, if given.
    Raises: Unavailable: one of its libraries is not installed or cannot be loaded.
    """
    entry = _REGISTRY.get(name)
    if entry is None:
        raise StageError(f"there is no backend {name!r}", f"use one of {', '.join(_REGISTRY)}")
    where = f" in the toolchain {toolchain.name}" if toolchain is not None else ""
    install = entry.install if toolchain is None else f"{toolchain.pip} {entry.packages}"
    for module, library in entry.libraries.items():
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name and f"{module}.".startswith(f"{error.name}."):
                text = f"the library {library} is not installed{where}"
                if entry.builds_on_gpu and not visible_gpus():
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
