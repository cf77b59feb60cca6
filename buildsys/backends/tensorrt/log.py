"""What TensorRT says while it works: its log and its progress.

Errors of TensorRT do not raise; they appear in its log alone. TensorRT keeps the first logger that a
process gives it, whatever later objects are given, so there is exactly one for each library, which never dies.
A Python IErrorRecorder is no way out: freeing its builder crashes the process.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from buildsys.backends.tensorrt.library import Library

_LOG = logging.getLogger(__name__)
_NOISE = (
    re.compile(r"^\d+: (?=\[?[A-Za-z])"),  # the number of an error
    re.compile(r"^I\w+::\w+: "),  # the API function that logs
    re.compile(r"^\[[\w.]+::\w+::\d+\] "),  # the source that logs
    re.compile(r"^Error Code \d+: "),
    re.compile(r"\[[\w.]+:\d+: \w+\] "),  # the compiler's source that fails
    re.compile(r",? ?In \w+ at /_src/\S+:\d+"),  # "(text. In validate at /_src/…:4023)"
)
_WRAPPED = re.compile(
    r"(?:Internal Error|API Usage Error|Serialization|Cuda \w+|Myelin) \((?P<text>.*)\)"
)
_SECONDS_BETWEEN_REPORTS = 0.2


@dataclass
class Messages:
    """The log of one piece of work, as sentences."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def sentence(self, fallback: str) -> str:
        """Return all errors in one line, or ``fallback`` when nothing was logged."""
        return "; ".join(dict.fromkeys(self.errors)) or fallback


class Log:
    """The one logger of a library in this process, and what it was told lately."""

    def __init__(self, library: Library) -> None:
        self.messages = Messages()
        self.logger = _logger(library, self)

    @contextmanager
    def collected(self) -> Iterator[Messages]:
        """Collect what TensorRT logs inside the block, apart from what it logged before."""
        before, self.messages = self.messages, Messages()
        try:
            yield self.messages
        finally:
            self.messages = before


@cache
def log_of(library: Library) -> Log:
    """Return the log of a library."""
    return Log(library)


def _logger(library: Library, log: Log) -> Any:
    trt = library.trt

    class Logger(trt.ILogger):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity <= trt.ILogger.ERROR:
                log.messages.errors.append(sentence_of(msg))
            elif severity == trt.ILogger.WARNING:
                log.messages.warnings.append(sentence_of(msg))
            else:
                _LOG.debug("%s", msg)

    return Logger()


@dataclass
class Phases:
    """The phases of a build that are under way, reported a few times a second at most."""

    report: Callable[[str], None]
    _steps: dict[str, int] = field(default_factory=dict)
    _last: float = 0.0

    def start(self, phase: str, steps: int) -> None:
        """Note how many steps a phase has."""
        self._steps[phase] = steps

    def finish(self, phase: str) -> None:
        """Forget a phase."""
        self._steps.pop(phase, None)

    def step(self, phase: str, step: int) -> bool:
        """Report a step. False, which cancels the build, when nobody listens any more."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_REPORTS:
            return True
        self._last = now
        try:
            self.report(f"{phase}: {step + 1} of {self._steps.get(phase, 0)}")
        except (
            OSError
        ):  # the pipe to the orchestrator is closed; an exception must not cross into C++
            return False
        return True


def layer_profiler(library: Library) -> tuple[Any, dict[str, float]]:
    """Return a profiler for a context, which must outlive it, and the milliseconds of each layer that it collects."""
    times: dict[str, float] = {}
    base = library.trt.IProfiler

    class Profiler(base):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            base.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name] = times.get(layer_name, 0.0) + ms

    return Profiler(), times


def sentence_of(message: str) -> str:
    """Return a message without the places in TensorRT's own source, and what it is wrapped in."""
    for noise in _NOISE:
        message = noise.sub("", message)
    text = " ".join(message.split())
    wrapped = _WRAPPED.fullmatch(text)
    return wrapped["text"].strip() if wrapped else text
