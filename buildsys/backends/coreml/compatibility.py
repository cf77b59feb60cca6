"""Rules for running Core ML engines, and their files."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from buildsys.backends.coreml.description import SYSTEMS, oldest_systems
from buildsys.system.compatibility.engine_files import Header, Reason, Record
from buildsys.system.engine_environment import version_numbers
from buildsys.system.protobuf import Content

_ENTRY, _END = b"PK\x03\x04", b"PK\x05\x06"  # a zip file's magic
_NAME = b".mlpackage/"
_END_BYTES = 22  # without a comment


def read_header(content: Content) -> Header | None:
    """Read the facts in a zipped package, perhaps a truncated one."""
    size = len(content)
    if content[:4] != _ENTRY or _NAME not in content[:300]:
        return None
    end = content[max(0, size - _END_BYTES) : size]
    return Header("coreml", truncated=end[:4] != _END)


def reasons(record: Record, here: str) -> Iterator[Reason]:  # noqa: ARG001
    """Yield the reason of a macOS older than the package's target."""
    version = record.figures.get("specification")
    macos = version_numbers(platform.mac_ver()[0])
    if isinstance(version, int) and macos and version in SYSTEMS:
        least = SYSTEMS[version][1]
        if macos[:1] < version_numbers(least.removeprefix("macOS")):
            problem = f"it was built for {oldest_systems(version)}, but this is macOS {macos[0]}"
            yield Reason("version", problem, "build it with a lower minimum_deployment_target")


def notes(record: Record) -> Iterator[str]:
    """Yield what the package needs."""
    version = record.figures.get("specification")
    if isinstance(version, int) and (names := oldest_systems(version)):
        yield f"it needs {names} or newer, and coremltools to run in Python"
