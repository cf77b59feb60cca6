"""TensorRT's log and layer times.

Errors of TensorRT do not raise; they appear in its log alone. TensorRT keeps the first logger that
a process gives it, whatever later objects are given, so there is one per library, which is never
freed. A Python IErrorRecorder is no alternative: freeing its builder crashes the process.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from buildsys.backends.tensorrt.library import Library

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
        """Return all errors in one line, or ``fallback`` without errors."""
        return "; ".join(dict.fromkeys(self.errors)) or fallback


class Log:
    """The logger of a library in this process, with recent messages."""

    def __init__(self, library: Library) -> None:
        self.messages = Messages()
        log, trt = self, library.trt

        class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
            def log(self, severity: Any, msg: str) -> None:
                if severity <= trt.ILogger.ERROR:
                    log.messages.errors.append(clean_message(msg))
                elif severity == trt.ILogger.WARNING:
                    log.messages.warnings.append(clean_message(msg))
                else:
                    _LOG.debug("%s", msg)

        self.logger = Logger()

    @contextmanager
    def collected(self) -> Iterator[Messages]:
        """Collect the messages logged inside the block, without earlier ones."""
        before, self.messages = self.messages, Messages()
        try:
            yield self.messages
        finally:
            self.messages = before


@cache
def log_of(library: Library) -> Log:
    """Return the log of a library."""
    return Log(library)


def layer_timer(library: Library) -> tuple[Any, dict[str, float]]:
    """Return a context's profiler and the milliseconds per layer.

    The profiler must outlive the context.
    """
    times: dict[str, float] = {}

    class Profiler(library.trt.IProfiler):  # type: ignore[misc,name-defined]
        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name] = times.get(layer_name, 0.0) + ms

    return Profiler(), times


def clean_message(message: str) -> str:
    """Return a message without its wrapping and the places in TensorRT's source."""
    for noise in _NOISE:
        message = noise.sub("", message)
    text = " ".join(message.split())
    wrapped = _WRAPPED.fullmatch(text)
    return wrapped["text"].strip() if wrapped else text
