"""Facts of OpenVINO as a backend, known without its library."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.system.backend_registry import BackendDescription, Machine, Reason, Record

BLOB = "engine.blob"


class _OpenVino(BackendDescription):
    """OpenVINO."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the library that quantizes."""
        return ("nncf",) if self.quantizes(options) else ()

    def further_files(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        return (BLOB,) if options.get("compiled") else ()

    def not_reproducible(self, options: Mapping[str, Any]) -> str:
        """Return the reason for a compiled model that differs from build to build."""
        return "OpenVINO's compiled models have generated names" if options.get("compiled") else ""

    def quantizes(self, options: Mapping[str, Any]) -> bool:
        """Check for int8: NNCF quantizes the float32 graph, unless it has quantizers."""
        has_own = options.get("auto") or options.get("quantized")
        return bool(options["precision"] == "int8" and not has_own)

    def auto_precisions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List bf16 first: it needs no calibration data."""
        return ("bf16", "fp16", "int8")

    def counts_cores(self, options: Mapping[str, Any]) -> bool:
        """Check for 0 threads: as many as there are cores."""
        return options.get("threads") == 0

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        from buildsys.system import compatibility as rules  # slow

        settings = record.map("settings")
        if not settings.get("compiled"):
            risk = "an older version may not support operators that the newer one added"
            yield from rules.older_library(record, here, risk)
            return
        built = rules.built_version(record)
        if here and built and built != here:
            problem = (
                f"it was built with {self.title} {built}, but {here} is installed: a compiled"
                " model only runs with its own version"
            )
            remedy = f"{rules.install_command(record)}, or set compiled: false"
            yield Reason("version", problem, remedy)
        recorded = record.map("built_with").get("instructions")
        others = (
            {*map(str, recorded)} ^ {*machine.instructions} if isinstance(recorded, list) else set()
        )
        if settings.get("device") == "CPU" and others:
            names = ", ".join(sorted(others))
            problem = f"its compiled model is for another kind of processor (it differs in {names})"
            yield Reason("processor", problem, "build it here, or set compiled: false")


DESCRIPTION = _OpenVino(
    title="OpenVINO",
    libraries={"openvino": "openvino"},
    install="pip install 'buildsys[openvino]'",
    packages="openvino onnx",
    engine_file="engine.xml",  # openvino itself looks for weights in a .bin of the same name
    data_file="engine.bin",
    able="builds and runs on the CPU",
    takes_float32=True,
    narrow_integers=True,
    environment=(r"(OV|OPENVINO)_.+",),
)
