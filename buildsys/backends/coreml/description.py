"""Systems, types and limits of Core ML. Standard library only.

Source: coremltools 9, ``coremltools.target`` and FeatureTypes.proto.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from buildsys.system.backend_registry import BackendDescription, Machine, Reason, Record

Target = Literal[
    "iOS15", "iOS16", "iOS17", "iOS18", "iOS26",
    "macOS12", "macOS13", "macOS14", "macOS15", "macOS26",
]  # fmt: skip
# version of the specification -> oldest systems
SYSTEMS = {
    6: ("iOS15", "macOS12"),
    7: ("iOS16", "macOS13"),
    8: ("iOS17", "macOS14"),
    9: ("iOS18", "macOS15"),
    10: ("iOS26", "macOS26"),
}
# of inputs -> of the package; it has no 64-bit integers
DTYPES = {"float32": "FLOAT32", "float16": "FLOAT16", "int32": "INT32", "int64": "INT32"}
COMPUTE_UNITS = {
    "all": "ALL",
    "cpu_and_gpu": "CPU_AND_GPU",
    "cpu_and_neural_engine": "CPU_AND_NE",
    "cpu_only": "CPU_ONLY",
}


def oldest_systems(version: int) -> str:
    """Return e.g. ``macOS 13 or iOS 16``, "" if unknown."""
    names = reversed(SYSTEMS.get(version, ()))
    return " or ".join(name.replace("OS", "OS ") for name in names)


class _CoreMl(BackendDescription):
    """Core ML."""

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        return ("torch", "protobuf")

    def accepts_all_sizes(self, options: Mapping[str, Any]) -> bool:
        """Return False for a package of single shapes."""
        return bool(options["shapes"] != "enumerated")

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        version = record.figures.get("specification")
        macos = machine.macos.partition(".")[0]
        if not macos or not isinstance(version, int) or version not in SYSTEMS:
            return
        if int(macos) < int(SYSTEMS[version][1].removeprefix("macOS")):
            problem = f"it was built for {oldest_systems(version)}, but this is macOS {macos}"
            yield Reason("version", problem, "build it with a lower minimum_deployment_target")

    def notes(self, record: Record) -> Iterator[str]:
        version = record.figures.get("specification")
        if isinstance(version, int) and (names := oldest_systems(version)):
            yield f"it needs {names} or newer, and coremltools to run in Python"


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
)
