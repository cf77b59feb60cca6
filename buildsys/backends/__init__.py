"""The backends by the name that manifests use. A backend's library is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, cast

from buildsys.backends.interface import Backend
from buildsys.errors import StageError, Unavailable
from buildsys.system.interpreters.toolchain import Toolchain


class _Entry(NamedTuple):
    module: str
    library: str
    install: str
    package: str  # what to install into a toolchain, which has no buildsys

    def how_to_install(self, toolchain: Toolchain | None) -> str:
        return self.install if toolchain is None else f"{toolchain.pip} {self.package}"


_REGISTRY = {
    "onnxruntime": _Entry(
        "buildsys.backends.onnxruntime.backend",
        "onnxruntime",
        "pip install onnxruntime",
        "onnxruntime",
    ),
    "tensorrt": _Entry(
        "buildsys.backends.tensorrt.backend",
        "tensorrt",
        "pip install 'buildsys[tensorrt]'",
        "tensorrt",
    ),
    "tensorrt_rtx": _Entry(
        "buildsys.backends.tensorrt_rtx.backend",
        "tensorrt_rtx",
        "pip install 'buildsys[rtx]'",
        "tensorrt-rtx",
    ),
}


def load_backend(name: str, toolchain: Toolchain | None = None) -> Backend:
    """Import and return a backend; ``toolchain`` is the one that this interpreter belongs to.

    Raises: Unavailable: its library is not installed or cannot be loaded here.
    """
    entry = _REGISTRY.get(name)
    if entry is None:
        raise StageError(
            f"there is no backend {name!r}", f"the backends are {', '.join(_REGISTRY)}"
        )
    where = f" in the toolchain {toolchain.name}" if toolchain is not None else ""
    install = entry.how_to_install(toolchain)
    try:
        import_module(entry.library)
    except ModuleNotFoundError as error:
        if error.name == entry.library:
            raise Unavailable(
                f"the library {entry.library} is not installed{where}", install
            ) from error
        raise Unavailable(
            f"the library {entry.library}{where} lacks the module {error.name}", install
        ) from error
    except (
        ImportError,
        OSError,
        RuntimeError,
    ) as error:  # a shared library is missing or does not fit
        raise Unavailable(
            f"the library {entry.library}{where} cannot be loaded: {error}", install
        ) from error
    return cast(Backend, import_module(entry.module))
