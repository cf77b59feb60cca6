"""Rules for running TensorRT-RTX engines, and their files."""

from __future__ import annotations

from collections.abc import Iterator

from buildsys.backends.tensorrt.compatibility import find_gpu, other_version
from buildsys.backends.tensorrt.compatibility import read_header as read_tensorrt_header
from buildsys.system.compatibility.engine_files import Header, Reason, Record
from buildsys.system.protobuf import Content


def read_header(content: Content) -> Header | None:
    """Read the facts in an engine file."""
    return read_tensorrt_header(content, (b"vtrt",), "tensorrt_rtx")


def reasons(record: Record, here: str) -> Iterator[Reason]:
    """Yield reasons by the version ``here`` ("": not installed), GPU and driver."""
    if reason := other_version(record, here):
        yield reason
    supported = _capabilities(record)
    *others, last = supported or [""]
    gpu = yield from find_gpu(record, f"{', '.join(others)} or {last}" if others else last)
    if gpu is not None and gpu["compute_capability"] not in supported:
        here = gpu["compute_capability"]
        built_for = f"{', '.join(others)} or {last}" if others else last
        problem = f"it was built for compute capability {built_for}"
        problem = f"{problem}, but {gpu['gpu']} here has {here}"
        remedy = f"add '{here}' to its compute_capabilities and build it again"
        yield Reason("compute capability", problem, remedy)


def _capabilities(record: Record) -> list[str]:
    own = str(record.map("built_with").get("compute_capability") or "")
    for recorded in (record.map("portability"), record.map("settings")):
        names = recorded.get("compute_capabilities")
        if isinstance(names, list) and names:
            return [own if name == "current" else str(name) for name in names]
    return []
