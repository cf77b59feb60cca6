"""Declarative builds of inference engines from PyTorch and ONNX models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buildsys.deploy.arrays import DeviceArray
    from buildsys.deploy.can_run import can_run
    from buildsys.deploy.engine import load_engine
    from buildsys.errors import EngineError
    from buildsys.release.resolve import resolve

__version__ = "0.1.0"
__all__ = ["DeviceArray", "EngineError", "__version__", "can_run", "load_engine", "resolve"]

_MODULES = {
    "DeviceArray": "deploy.arrays",
    "EngineError": "errors",
    "can_run": "deploy.can_run",
    "load_engine": "deploy.engine",
    "resolve": "release.resolve",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use.

    Its module is computed: no stage's key depends on it.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
