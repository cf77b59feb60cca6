"""Rules for running ONNX Runtime engines, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from importlib.util import find_spec

from buildsys.backends.onnxruntime.description import DESCRIPTION
from buildsys.backends.onnxruntime.execution_providers import CPU, known_providers
from buildsys.system.compatibility.engine_files import Header, Reason, Record
from buildsys.system.compatibility.rules import needs_gpu, older_library
from buildsys.system.cpu import engine_instructions, overflows_in_int8
from buildsys.system.engine_environment import version_numbers, visible_gpus, why_no_gpu
from buildsys.system.protobuf import Content

_LAYOUTS = ("avx", "avx2", "avx512f")  # weights are blocked in channels by their width
_IR_VERSION = 0x08  # tags of ModelProto's fields: number << 3 | wire type
_NEXT = (5 << 3, *(number << 3 | 2 for number in (2, 3, 4, 6, 7, 8)))


def reasons(record: Record, here: str) -> Iterator[Reason]:
    """Yield reasons by version ``here`` ("": not installed), provider and processor."""
    yield from older_library(
        record, here, "an older version may not support operators that the newer one added"
    )
    if needs_gpu(record) and not visible_gpus():
        problem = f"it needs an NVIDIA GPU, but {why_no_gpu()}"
        yield Reason("gpu", problem, "run it on an NVIDIA GPU")
    available = import_module(DESCRIPTION.module).get_available_providers() if here else ()
    for provider in known_providers(record.map("settings")):
        has_plugin = provider.plugin and find_spec(provider.plugin.replace("-", "_")) is not None
        if here and provider.title not in available and not has_plugin:
            problem = (
                f"it needs ONNX Runtime's {provider.name} provider, but the installed onnxruntime"
                " does not have it"
            )
            yield Reason("library", problem, provider.install)
    if record.map("settings").get("ep_context"):
        yield from _context_reasons(record)
    if all(provider.name == CPU for provider in known_providers(record.map("settings"))):
        yield from _check_processor(record)


def _context_reasons(record: Record) -> Iterator[Reason]:
    """Yield providers of another version than that whose compiled nodes the engine contains."""
    for provider in known_providers(record.map("settings")):
        library = provider.context_library
        built = str(record.map("provider_libraries").get(library) or "")
        try:
            here = metadata.version(library) if built else ""
        except metadata.PackageNotFoundError:  # it may be the system's
            continue
        is_newer = version_numbers(here) > version_numbers(built)
        if here != built and not (provider.reads_older_contexts and is_newer):
            problem = f"its nodes were compiled by {library} {built}, but {here} is installed"
            newer = " or newer" if provider.reads_older_contexts else ", or build it here"
            yield Reason("version", problem, f"pip install '{library}=={built}'{newer}")


def _check_processor(record: Record) -> Iterator[Reason]:
    here, recorded = engine_instructions(), record.map("built_with").get("instructions")
    names = [str(name) for name in recorded] if isinstance(recorded, list) else []
    shares = record.map("precision_shares").get("weights")
    if (
        names
        and overflows_in_int8(here)
        and not overflows_in_int8(names)
        and isinstance(shares, Mapping)
        and "int8" in shares
    ):
        problem = (
            "it computes in int8 and was built on a processor with VNNI instructions; on this one,"
            " which has none, its products would overflow"
        )
        yield Reason("processor", problem, "build it here")
    if record.map("settings").get("graph_optimization_level", "all") != "all":
        return
    missing = [name for name in names if name in _LAYOUTS and name not in here]
    if missing:
        problem = (
            f"its weights are laid out for {', '.join(missing)},"
            " which this processor does not support"
        )
        remedy = "build it here, or with graph_optimization_level: extended"
        yield Reason("processor", problem, remedy)


def read_header(content: Content) -> Header | None:
    """Recognize an ONNX file by its first fields: an IR version, and one that follows it."""
    start = content[:3]
    is_onnx = len(start) == 3 and start[0] == _IR_VERSION and start[1] < 128
    return Header("onnxruntime") if is_onnx and start[2] in _NEXT else None
