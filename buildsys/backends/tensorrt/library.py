"""A loaded TensorRT: its module, version, API generation and log.

Errors of TensorRT do not raise; they appear in its log alone. TensorRT keeps the first logger that
a process gives it, whatever later objects are given, so there is one per library, which is never
freed. A Python IErrorRecorder is no alternative: freeing its builder crashes the process.
"""

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

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


DTYPES = (
    "float32", "float16", "bfloat16", "int8", "uint8", "int32", "int64", "bool", "float8e4m3fn",
    "float8e8m0", "int4", "float4e2m1",
)  # fmt: skip
FORMATS = (
    "linear", "chw2", "chw4", "chw16", "chw32", "hwc", "hwc8", "hwc16", "dhwc", "dhwc8", "cdhw32",
    "dla_linear", "dla_hwc4",
)  # fmt: skip
POOLS = (
    "workspace", "tactic_dram", "dla_managed_sram", "dla_local_dram", "dla_global_dram",
    "tactic_shared_memory",
)  # fmt: skip
_NAMES = {  # TensorRT's, where they are not the words of manifests in upper case
    "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16", "float8e4m3fn": "FP8",
    "float8e8m0": "E8M0", "float4e2m1": "FP4", "obey": "OBEY_PRECISION_CONSTRAINTS",
    "prefer": "PREFER_PRECISION_CONSTRAINTS",
}  # fmt: skip
# fields that not all generations have
_FLAG_FIELDS = ("refit_identical", "refit_individual", "strip_plan", "weight_streaming")
_ENUMERATIONS = {
    "tactic_sources": "TacticSource",
    "hardware_compatibility": "HardwareCompatibilityLevel",
    "tiling_optimization_level": "TilingOptimizationLevel",
}


def find_value(library: TensorRTLibrary, enumeration: str, word: str) -> Any:
    """Find the value of an enumeration for a word of manifests, None if the library lacks it."""
    name = f"SM{word.replace('.', '')}" if word[0].isdigit() else _NAMES.get(word, word.upper())
    return getattr(getattr(library.trt, enumeration, None), name, None)


def value_of(library: TensorRTLibrary, enumeration: str, word: str) -> Any:
    """Return the value of an enumeration for a word of manifests."""
    value = find_value(library, enumeration, word)
    if value is None:
        text = f"{library.release} has no {enumeration} {word}"
        raise StageError(text, "choose another one, or use another version of TensorRT")
    return value


def dtype_words(library: TensorRTLibrary) -> dict[Any, str]:
    """Return ONNX's names of the data types that the library has."""
    values = {find_value(library, "DataType", word): word for word in DTYPES}
    return {value: word for value, word in values.items() if value is not None}


def check_fields(library: TensorRTLibrary, options: Mapping[str, Any]) -> None:
    """Check an engine's fields against the library.

    Source: TensorRT 11.3.0 release notes, "Known Issues": with the flag REFIT, the bias of a matrix
    product can be dropped, even if nothing is refitted.
    """
    if options.get("refit") and library.generation == TRT_11 and library.version[:2] == (11, 3):
        text = f"refit: {library.release} may drop biases of refittable engines"
        raise StageError(text, "remove refit, or use another version of TensorRT (toolchain)")
    words = [("BuilderFlag", f"flags.{flag}", flag) for flag in options.get("flags", {})]
    words += [("BuilderFlag", flag, flag) for flag in _FLAG_FIELDS if options.get(flag)]
    words += [("MemoryPoolType", p, p) for p in POOLS if options.get(p) is not None]
    for name, enumeration in _ENUMERATIONS.items():
        values: Sequence[str] = options.get(name) or ()
        for value in (values,) if isinstance(values, str) else values:
            words.append((enumeration, f"{name}: {value}", value))
    strong, until_10 = is_strong(options), library.generation in UNTIL_10
    if not strong:
        layers = [entry["precision"] for entry in options.get("layer_precisions", ())]
        precisions = [name for name in (options["precision"], *layers) if name != "fp32"]
        words += [("BuilderFlag", f"precision: {name}", name) for name in precisions]
    supported = {
        title: word == "none" or find_value(library, enumeration, word) is not None
        for enumeration, title, word in words
    }
    supported["typing: strong" if strong else "typing: weak"] = (
        library.generation in SINCE_10 if strong else until_10
    )
    if options.get("l2_limit_for_tiling") is not None:
        supported["l2_limit_for_tiling"] = library.generation in SINCE_10
    if options.get("layer_precisions"):
        supported["layer_precisions"] = until_10
    if options.get("quantization") == "implicit":
        supported["quantization: implicit"] = until_10
    if unsupported := [title for title, is_supported in supported.items() if not is_supported]:
        text = f"{library.release} does not support {' and '.join(unsupported)}"
        other = "TensorRT 10 or later" if library.generation == TRT_8 else "TensorRT 10 or 8.6"
        raise StageError(text, f"use {other}, or remove the field from the engine")


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


def load_failure(file: str, messages: Messages, release: str) -> StageError:
    """Explain a failed load."""
    reason = messages.error_text("it gives no reason")
    problem = f"{file} is damaged, of another version than {release}, or for another GPU"
    hint = "build it again on this machine, or stop other programs if the GPU is out of memory"
    return StageError(f"{problem}: {reason}", hint)
