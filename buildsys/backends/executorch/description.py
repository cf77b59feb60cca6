"""Facts of ExecuTorch as a backend, known without its library."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.system.backend_registry import BackendDescription, Machine, Reason, Record


class _ExecuTorch(BackendDescription):
    """ExecuTorch."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List the libraries that read the program and quantize."""
        return ("torch", *(("torchao",) if self.quantizes(options) else ()))

    def quantizes(self, options: Mapping[str, Any]) -> bool:
        """Check for int8: the captured program is quantized, unless it has quantizers."""
        return bool(options["precision"] == "int8" and not options.get("quantized"))

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        from buildsys.system.compatibility import older_library  # slow

        return older_library(
            record, here, "an older runtime may not support what the newer one wrote"
        )


DESCRIPTION = _ExecuTorch(
    title="ExecuTorch",
    libraries={"executorch": "executorch", "torch": "torch"},
    install="pip install 'buildsys[executorch]'",
    packages="executorch torch",
    engine_file="engine.pte",
    able="builds for phones and boards, and runs on the CPU",
    takes_float32=True,
    takes_program=True,
    operator_kinds=(),
    any_processor=True,
)
