"""The backends by the name that manifests use. A backend's library is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple, cast

from buildsys.backends.base import Backend
from buildsys.errors import StageError, Unavailable


class _Entry(NamedTuple):
    module: str
    library: str
    install: str


_REGISTRY = {
    "onnxruntime": _Entry("buildsys.backends.onnxruntime", "onnxruntime", "pip install onnxruntime"),
    "tensorrt": _Entry("buildsys.backends.tensorrt", "tensorrt", "pip install 'buildsys[tensorrt]'"),
    "tensorrt_rtx": _Entry("buildsys.backends.tensorrt_rtx", "tensorrt_rtx", "pip install 'buildsys[rtx]'"),
}


def load_backend(name: str) -> Backend:
    """Import and return a backend.

    Raises: Unavailable: its library is not installed or cannot be loaded here.
    """
    entry = _REGISTRY.get(name)
    if entry is None:
        raise StageError(f"there is no backend {name!r}", f"the backends are {', '.join(_REGISTRY)}")
    try:
        import_module(entry.library)
    except ModuleNotFoundError as error:
        if error.name == entry.library:
            raise Unavailable(f"the library {entry.library} is not installed", entry.install) from error
        raise Unavailable(f"the library {entry.library} lacks the module {error.name}", entry.install) from error
    except (ImportError, OSError, RuntimeError) as error:  # a shared library is missing or does not fit
        raise Unavailable(f"the library {entry.library} cannot be loaded: {error}", entry.install) from error
    return cast(Backend, import_module(entry.module))
