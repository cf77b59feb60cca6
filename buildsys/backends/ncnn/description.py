"""Facts of ncnn as a backend, known without its library."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from buildsys.system.backend_registry import BackendDescription, Machine, Reason, Record

PORTS = "engine.ports.json"  # names, types and ranges: the format itself has in0, out0, …


class _Ncnn(BackendDescription):
    """ncnn."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the converter."""
        return ("pnnx",)

    def further_files(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        return (PORTS,)

    def counts_cores(self, options: Mapping[str, Any]) -> bool:
        """Check for 0 threads: as many as there are cores."""
        return options.get("threads") == 0

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        from buildsys.system.compatibility import older_library  # slow

        return older_library(record, here, "an older version may not have layers of the newer one")


DESCRIPTION = _Ncnn(
    title="ncnn",
    libraries={"ncnn": "ncnn"},
    install="pip install 'buildsys[ncnn]'",
    packages="ncnn pnnx onnx",
    engine_file="engine.param",
    data_file="engine.bin",
    able="builds and runs on the CPU",
    takes_float32=True,
    takes_images=False,
    narrow_integers=True,
    any_processor=True,
)


def layer_kinds(param: Path) -> list[str]:
    """List the kinds of a network's layers in order."""
    return [line.split()[0] for line in param.read_text().splitlines()[2:] if line.strip()]
