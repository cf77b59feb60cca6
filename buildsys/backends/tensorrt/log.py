"""TensorRT's log, and errors explained by it.

Errors of TensorRT do not raise; they appear in its log alone. TensorRT keeps the first logger that
a process gives it, whatever later objects are given, so there is one per library, which is never
freed. A Python IErrorRecorder is no alternative: freeing its builder crashes the process.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from buildsys.backends.cuda_gpus import format_size
from buildsys.backends.interface import Options
from buildsys.backends.tensorrt.library import TensorRTLibrary
from buildsys.errors import StageError

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
