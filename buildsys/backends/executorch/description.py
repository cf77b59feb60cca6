"""Facts of ExecuTorch as a backend, known without its library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from buildsys.system.backend_registry import BackendDescription, Header, Reason, Record

if TYPE_CHECKING:
    from buildsys.system.files import Content

_FORMAT, _HEADER = b"ET", b"eh00"  # the flatbuffer's, then the sizes' magic


class _ExecuTorch(BackendDescription):
    """ExecuTorch."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List the libraries that read the program and quantize."""
        return ("torch", *(("torchao",) if self.quantizes(options) else ()))

    def quantizes(self, options: Mapping[str, Any]) -> bool:
        """Check for int8: the captured program is quantized."""
        return bool(options["precision"] == "int8")

    def read_header(self, content: Content) -> Header | None:
        """Read the facts in a program, with the size that the file should have."""
        if content[4:6] != _FORMAT or content[8:12] != _HEADER:
            return None
        sizes = (int.from_bytes(content[at : at + 8], "little") for at in (16, 24, 32))
        program, base, data = sizes
        length = int.from_bytes(content[12:16], "little")
        whole = max(program, base + (data if length >= 32 else 0))
        return Header("executorch", whole_bytes=whole, truncated=len(content) < whole)

    def reasons(self, record: Record, here: str) -> Iterator[Reason]:
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
