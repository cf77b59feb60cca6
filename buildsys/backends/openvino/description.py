"""Facts of OpenVINO as a backend, known without its library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.system.backend_registry import BackendDescription

BLOB = "engine.blob"


class _OpenVino(BackendDescription):
    """OpenVINO."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the library that quantizes."""
        return ("nncf",) if self.quantizes(options) else ()

    def further_files(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List the compiled model, if it is kept."""
        return (BLOB,) if options.get("compiled") else ()

    def not_reproducible(self, options: Mapping[str, Any]) -> str:
        """Return the reason for a compiled model that differs from build to build."""
        return "OpenVINO's compiled models have generated names" if options.get("compiled") else ""

    def quantizes(self, options: Mapping[str, Any]) -> bool:
        """Check for int8: NNCF quantizes the float32 graph, unless a search has done so."""
        return bool(options["precision"] == "int8" and not options.get("auto"))

    def auto_precisions(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """List bf16 first: it needs no calibration data."""
        return ("bf16", "fp16", "int8")

    def counts_cores(self, options: Mapping[str, Any]) -> bool:
        """Check for 0 threads: as many as there are cores."""
        return options.get("threads") == 0


DESCRIPTION = _OpenVino(
    title="OpenVINO",
    libraries={"openvino": "openvino"},
    install="pip install 'buildsys[openvino]'",
    packages="openvino onnx",
    engine_file="engine.xml",  # openvino itself looks for weights in a .bin of the same name
    data_file="engine.bin",
    able="builds and runs on the CPU",
    takes_float32=True,
    environment=(r"(OV|OPENVINO)_.+",),
    build_seconds=3.0,
)
