"""Facts of Core ML as a backend, known without its library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import BackendDescription


class _CoreMl(BackendDescription):
    """Core ML."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the libraries for reading programs and writing packages."""
        return ("torch", "protobuf")

    def accepts_all_sizes(self, options: Mapping[str, Any]) -> bool:
        """Return False for a package of single shapes."""
        return bool(options["shapes"] != "enumerated")


DESCRIPTION = _CoreMl(
    title="Core ML",
    libraries={"coremltools": "coremltools", "torch": "torch"},
    install="pip install 'buildsys[coreml]'",
    packages="coremltools torch",
    engine_file="engine.mlpackage.zip",
    able="builds here, and its engines run on macOS and iOS",
    takes_float32=True,
    takes_program=True,
    operator_kinds=(),
    any_processor=True,
    runs_on="macOS",
    build_seconds=15.0,
)
