"""Declarative builds of inference engines from PyTorch and ONNX models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from buildsys.system.compatibility.check import can_run

__version__ = "0.1.0"
__all__ = ["__version__", "can_run"]


def __getattr__(name: str) -> Any:
    """Import ``can_run`` on first use. Its name is computed: no stage's key may depend on it."""
    if name != "can_run":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module(f"{__name__}.system.compatibility.check").can_run
