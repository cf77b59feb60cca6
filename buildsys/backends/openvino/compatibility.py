"""Rules for running OpenVINO engines, and their files."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.backends.openvino.description import DESCRIPTION
from buildsys.system.compatibility.engine_files import Header, Reason, Record
from buildsys.system.compatibility.rules import (
    built_version,
    install_command,
    older_library,
)
from buildsys.system.cpu import engine_instructions
from buildsys.system.engine_environment import version_numbers
from buildsys.system.protobuf import Content

_BEGIN, _END = b"<net ", b"</net>"


def read_header(content: Content) -> Header | None:
    """Read the facts in an IR; its end is missing if it is truncated."""
    if _BEGIN not in content[:200]:
        return None
    size = len(content)
    return Header("openvino", truncated=_END not in content[max(0, size - 100) : size])


def reasons(record: Record, here: str) -> Iterator[Reason]:
    """Yield the reason of an older version ``here`` ("": not installed)."""
    if not record.map("settings").get("compiled"):
        yield from older_library(
            record, here, "an older version may not support operators that the newer one added"
        )
        return
    built = built_version(record)
    if here and version_numbers(built) not in ((), version_numbers(here)):
        problem = (
            f"it was built with {DESCRIPTION.title} {built}, but {here} is installed: a compiled"
            " model only runs with its own version"
        )
        yield Reason("version", problem, f"{install_command(record)}, or set compiled: false")
    yield from _check_processor(record)


def _check_processor(record: Record) -> Iterator[Reason]:
    here, recorded = engine_instructions(), record.map("built_with").get("instructions")
    names = recorded if isinstance(recorded, list) else []
    if record.map("settings").get("device") == "CPU" and set(names) != set(here) and names:
        others = ", ".join(sorted(set(names) ^ set(here)))
        problem = f"its compiled model is for another kind of processor (it differs in {others})"
        yield Reason("processor", problem, "build it here, or set compiled: false")
