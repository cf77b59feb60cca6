"""A loaded TensorRT: its module, version, API generation and log.

Errors of TensorRT do not raise; they appear in its log alone. TensorRT keeps the first logger that
a process gives it, whatever later objects are given, so there is one per library, which is never
freed. A Python IErrorRecorder is no alternative: freeing its builder crashes the process.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from buildsys.backends.cuda_gpus import format_size
from buildsys.backends.interface import Options
from buildsys.errors import StageError, Unavailable

TRT_8, TRT_10, TRT_11, RTX = "TensorRT 8.6", "TensorRT 10", "TensorRT 11", "TensorRT-RTX"
GENERATIONS = (TRT_8, TRT_10, TRT_11, RTX)
SINCE_10, UNTIL_10 = (TRT_10, TRT_11, RTX), (TRT_8, TRT_10)
FEATURES = {  # the generations with each
    "calibrators": UNTIL_10,
    "timing caches": (TRT_8, TRT_10, TRT_11),
    "plugins in Python": SINCE_10,
    "bundled plugins": (TRT_8, TRT_10, TRT_11),
    "local functions": SINCE_10,
    "parser in a library": (RTX,),
    "names of all refused nodes": SINCE_10,
    "builds for other GPUs": (RTX,),
}
_OLDEST = (8, 6)


@dataclass(frozen=True)
class TensorRTLibrary:
    """A loaded TensorRT."""

    trt: Any  # the module ``tensorrt`` or ``tensorrt_rtx``; its bindings have no types
    version: tuple[int, ...]

    @property
    def generation(self) -> str:
        """The API generation, one of ``GENERATIONS``."""
        if self.trt.__name__ == "tensorrt_rtx":
            return RTX
        return TRT_8 if self.version < (10,) else TRT_10 if self.version < (11,) else TRT_11

    def has(self, feature: str) -> bool:
        """Check whether this generation has one of ``FEATURES``."""
        return self.generation in FEATURES[feature]

    @property
    def title(self) -> str:
        """The name for messages."""
        return RTX if self.generation == RTX else "TensorRT"

    @property
    def release(self) -> str:
        """Name and version, e.g. ``TensorRT 8.6.0``."""
        return f"{self.title} {'.'.join(map(str, self.version[:3]))}"


def library_of(module: ModuleType) -> TensorRTLibrary:
    """Return the library of a module."""
    version = tuple(int(part) for part in re.findall(r"\d+", str(module.__version__))[:4])
    library = TensorRTLibrary(module, version)
    if library.generation != RTX and version < _OLDEST:
        raise Unavailable(f"{library.release} is too old", "install TensorRT 8.6, 10 or 11")
    return library


def join_or(names: Sequence[str]) -> str:
    """Join names as in ``a, b or c``."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


class Member(NamedTuple):
    """A value of an enumeration."""

    name: str
    generations: tuple[str, ...] = GENERATIONS


class EnumTable(NamedTuple):
    """The values of one enumeration by their words in manifests."""

    enumeration: str
    members: Mapping[str, Member]

    def of(self, library: TensorRTLibrary, word: str) -> Any:
        """Return the value for a word."""
        member = self.members[word]
        value = getattr(getattr(library.trt, self.enumeration, None), member.name, None)
        if library.generation not in member.generations or value is None:
            text = f"{library.release} has no {word}"
            raise StageError(text, f"{join_or(member.generations)} has")
        return value

    def words(self, library: TensorRTLibrary) -> dict[Any, str]:
        """Return the words of all values of the library."""
        owner = getattr(library.trt, self.enumeration, None)
        values = {
            word: getattr(owner, member.name, None)
            for word, member in self.members.items()
            if library.generation in member.generations
        }
        return {value: word for word, value in values.items() if value is not None}


def _table(enumeration: str, words: Mapping[tuple[str, ...], str]) -> EnumTable:
    """Make a table of values named like their words, by generations."""
    members = {
        word: Member(word.upper(), generations)
        for generations, text in words.items()
        for word in text.split()
    }
    return EnumTable(enumeration, members)


DTYPES = EnumTable(
    "DataType",
    {
        "float32": Member("FLOAT"),
        "float16": Member("HALF"),
        "bfloat16": Member("BF16", SINCE_10),
        "int8": Member("INT8"),
        "uint8": Member("UINT8"),
        "int32": Member("INT32"),
        "int64": Member("INT64", SINCE_10),
        "bool": Member("BOOL"),
        "float8e4m3fn": Member("FP8"),
        "float8e8m0": Member("E8M0", SINCE_10),
        "int4": Member("INT4", SINCE_10),
        "float4e2m1": Member("FP4", SINCE_10),
    },
)
FLAGS = _table("BuilderFlag", {
    GENERATIONS: "tf32 sparse_weights direct_io gpu_fallback refit version_compatible"
    " exclude_lean_runtime debug",
    SINCE_10: "refit_individual refit_identical strip_plan weight_streaming strict_nans"
    " editable_timing_cache disable_compilation_cache monitor_memory distributive_independence",
    (RTX,): "require_user_allocation",
})  # fmt: skip
_GPUS = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
CAPABILITIES = EnumTable(
    "ComputeCapability",
    {name: Member(f"SM{name.replace('.', '')}", (RTX,)) for name in _GPUS}
    | {"current": Member("CURRENT", (RTX,))},
)
TILING = _table("TilingOptimizationLevel", {SINCE_10: "none fast moderate full"})
VERBOSITY = _table("ProfilingVerbosity", {GENERATIONS: "layer_names_only none detailed"})
POOLS = _table("MemoryPoolType", {
    GENERATIONS: "workspace tactic_dram dla_managed_sram dla_local_dram dla_global_dram",
    SINCE_10: "tactic_shared_memory",
})  # fmt: skip
PRECISION_FLAGS = EnumTable(
    "BuilderFlag",
    {
        "fp16": Member("FP16", UNTIL_10),
        "bf16": Member("BF16", (TRT_10,)),
        "int8": Member("INT8", UNTIL_10),
        "obey": Member("OBEY_PRECISION_CONSTRAINTS", UNTIL_10),
        "prefer": Member("PREFER_PRECISION_CONSTRAINTS", UNTIL_10),
    },
)
TACTIC_SOURCES = _table("TacticSource", {
    UNTIL_10: "cublas cublas_lt cudnn", GENERATIONS: "edge_mask_convolutions jit_convolutions",
})  # fmt: skip
HARDWARE = _table("HardwareCompatibilityLevel", {
    GENERATIONS: "none ampere_plus", SINCE_10: "same_compute_capability",
})  # fmt: skip
FORMATS = _table("TensorFormat", {
    GENERATIONS: "linear chw2 chw4 chw16 chw32 hwc hwc8 hwc16 dhwc dhwc8 cdhw32 dla_linear dla_hwc4"
})  # fmt: skip

# fields that not all generations have, unless they have a value that requests nothing
_FIELDS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("tactic_shared_memory", "tiling_optimization_level"), SINCE_10),
    **dict.fromkeys(("l2_limit_for_tiling", "refit_identical", "refit_individual"), SINCE_10),
    **dict.fromkeys(("strip_plan", "weight_streaming"), SINCE_10),
    "layer_precisions": UNTIL_10,
}
_REQUESTS_NOTHING: tuple[object, ...] = (None, False, "none", (), [])


def check_fields(library: TensorRTLibrary, options: Mapping[str, Any]) -> None:
    """Check an engine's fields against the library."""
    needs: list[tuple[str, tuple[str, ...]]] = [
        (field, generations)
        for field, generations in _FIELDS.items()
        if options.get(field, None) not in _REQUESTS_NOTHING
    ]
    needs += [
        (f"flags.{flag}", FLAGS.members[flag].generations) for flag in options.get("flags", {})
    ]
    for name, table in (("tactic_sources", TACTIC_SOURCES), ("hardware_compatibility", HARDWARE)):
        values: Iterable[str] = options.get(name) or ()
        values = (values,) if isinstance(values, str) else values
        needs += [(f"{name}: {value}", table.members[value].generations) for value in values]
    strong = options.get("typing", "strong") == "strong"
    needs.append(("typing: strong", SINCE_10) if strong else ("typing: weak", UNTIL_10))
    if options.get("quantization") == "implicit":
        needs.append(("quantization: implicit", UNTIL_10))
    if not strong:
        layers = [entry["precision"] for entry in options.get("layer_precisions", ())]
        needs += [
            (f"precision: {name}", PRECISION_FLAGS.members[name].generations)
            for name in (options["precision"], *layers)
            if name != "fp32"
        ]
    unsupported: dict[str, None] = {}
    for name, generations in needs:
        if library.generation not in generations:
            own = [v for v in generations if options["backend"] != "tensorrt" or v != RTX]
            unsupported[f"{name} ({join_or(own or generations)} can)"] = None
    if unsupported:
        text = f"{library.release} does not support {' and '.join(unsupported)}"
        raise StageError(text, "use another version, or remove the field from the engine")


def is_strong(options: Mapping[str, Any]) -> bool:
    """Check whether the graph's types decide the engine's."""
    return bool(options.get("typing", "strong") == "strong")


def quantization_of(options: Mapping[str, Any]) -> str | None:
    """Return "implicit" (the builder calibrates), "explicit" (quantizers) or None."""
    chosen: str | None = options.get("quantization")
    if chosen is None and options["precision"] in ("int8", "fp8"):
        return "explicit" if is_strong(options) else "implicit"
    return chosen


_LOG = logging.getLogger(__name__)
_NOISE = (
    re.compile(r"^\d+: (?=\[?[A-Za-z])"),  # error number
    re.compile(r"^I\w+::\w+: "),  # API function that logs
    re.compile(r"^\[[\w.]+::\w+::\d+\] "),  # source that logs
    re.compile(r"^Error Code \d+: "),
    re.compile(r"\[[\w.]+:\d+: \w+\] "),  # source of the compiler
    re.compile(r",? ?In \w+ at /_src/\S+:\d+"),  # "(text. In validate at /_src/…:4023)"
)
_WRAPPED = re.compile(
    r"(?:Internal Error|API Usage Error|Serialization|Cuda \w+|Myelin) \((?P<text>.*)\)"
)
_NO_TACTIC = re.compile(r"could not find any implementation for node", re.I)
_OUT_OF_MEMORY = re.compile(
    r"out ?of ?memory|could not be allocated|cudaErrorMemoryAllocation"
    r"|insufficient memory on requested size",
    re.I,
)


@dataclass
class Messages:
    """Logged messages of one piece of work."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def error_text(self, fallback: str) -> str:
        """Join all errors in one line; return ``fallback`` without errors."""
        return "; ".join(dict.fromkeys(self.errors)) or fallback


class Log:
    """The logger of a library in this process, with recent messages."""

    def __init__(self, library: TensorRTLibrary) -> None:
        self.messages = Messages()  # the block entered last, by any thread
        self._of_thread = threading.local()
        log, trt = self, library.trt

        class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
            def log(self, severity: Any, msg: str) -> None:
                # the builder also logs in its worker threads
                messages = getattr(log._of_thread, "messages", None) or log.messages
                if severity <= trt.ILogger.ERROR:
                    messages.errors.append(clean_message(msg))
                elif severity == trt.ILogger.WARNING:
                    messages.warnings.append(clean_message(msg))
                else:
                    _LOG.debug("%s", msg)

        self.logger = Logger()

    @contextmanager
    def collected(self) -> Iterator[Messages]:
        """Collect the messages that this thread logs inside the block."""
        outer, before = getattr(self._of_thread, "messages", None), self.messages
        messages = self.messages = self._of_thread.messages = Messages()
        try:
            yield messages
        finally:
            self._of_thread.messages, self.messages = outer, before


log_of = cache(Log)  # the log of a library


def clean_message(message: str) -> str:
    """Strip a message of its wrapping and of the places in TensorRT's source."""
    for noise in _NOISE:
        message = noise.sub("", message)
    text = " ".join(message.split())
    wrapped = _WRAPPED.fullmatch(text)
    return wrapped["text"].strip() if wrapped else text


def build_failure(messages: Messages, options: Options, title: str) -> StageError:
    """Explain a failed build."""
    reason = messages.error_text(f"{title} built no engine")
    has_no_tactic = any(map(_NO_TACTIC.search, messages.errors))
    if has_no_tactic and options["workspace"] is not None:
        limit = f"workspace: {format_size(options['workspace'])}"
        text = f"a layer has no tactic within {limit}: {reason}"
        return StageError(text, "increase the engine's workspace, or remove the field")
    if any(map(_OUT_OF_MEMORY.search, messages.errors)):
        hint = "stop other programs on the GPU, limit the engine's workspace, or build smaller"
        return StageError(f"the GPU is out of memory: {reason}", f"{hint} profiles")
    return StageError(reason)


def load_failure(file: str, messages: Messages, release: str) -> StageError:
    """Explain a failed load."""
    reason = messages.error_text("it gives no reason")
    if any(map(_OUT_OF_MEMORY.search, messages.errors)):
        text = f"{file} cannot be loaded: the GPU is out of memory: {reason}"
        return StageError(text, "stop other programs on the GPU")
    problem = (
        f"{file} is damaged, or was built by another version than {release} or for another GPU"
    )
    return StageError(f"{problem}: {reason}", "build it again on this machine")
