"""Modules of torch under their names in older tutorials."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_INTERNAL = "torch.onnx._internal"
_MOVED = {  # until torch 2.9 -> now
    f"{_INTERNAL}.{name}": f"{_INTERNAL}.torchscript_exporter.{name}"
    for name in ("registration", "jit_utils")
}


class _MovedModules(MetaPathFinder, Loader):
    """Import of moved modules, after all other finders."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        found = import_module(_MOVED[spec.name])
        spec.loader_state = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__  # import replaced the module's own
        module.__spec__ = spec.loader_state if spec else None


def provide_old_names() -> None:
    """Let user code import moved modules by their old names."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())
