"""Facts of ExecuTorch as a backend, known without its library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import Ability, BackendDescription, Gpus


class _ExecuTorch(BackendDescription):
    """ExecuTorch."""

    def ability(
        self,
        version: str,  # noqa: ARG002
        facts: Mapping[str, Any],  # noqa: ARG002
        gpus: Gpus,  # noqa: ARG002
        *,
        cuda: bool = False,  # noqa: ARG002
    ) -> Ability:
        """Return the abilities of its runtime for Python."""
        return Ability("builds for phones and boards, and runs on the CPU")

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the libraries that read the program and quantize."""
        return ("torch", *(("torchao",) if self.quantizes(options) else ()))

    def quantizes(self, options: Mapping[str, Any]) -> bool:
        """Return True for int8: the captured program is quantized."""
        return bool(options["precision"] == "int8")


DESCRIPTION = _ExecuTorch(
    title="ExecuTorch",
    libraries={"executorch": "executorch", "torch": "torch"},
    install="pip install 'buildsys[executorch]'",
    packages="executorch torch",
    engine_file="engine.pte",
    takes_float32=True,
    takes_program=True,
    operator_kinds=(),
    any_processor=True,
    build_seconds=12.0,
)
