"""What TensorRT-RTX says while it works: its log and its progress.

Errors of TensorRT do not raise; they appear in its log alone. TensorRT keeps the first logger that a
process gives it, whatever later objects are given, so there is exactly one here, which never dies.
A Python IErrorRecorder is no way out: freeing its builder crashes the process.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import tensorrt_rtx as trt

_LOG = logging.getLogger(__name__)
_NOISE = (
    re.compile(r"^I\w+::\w+: "),  # the API function that logs
    re.compile(r"^\[[\w.]+::\w+::\d+\] "),  # the source that logs
    re.compile(r"^Error Code \d+: "),
    re.compile(r"\[[\w.]+:\d+: \w+\] "),  # the compiler's source that fails
    re.compile(r",? ?In \w+ at /_src/\S+:\d+"),  # "(text. In validate at /_src/…:4023)"
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


class _Logger(trt.ILogger):  # type: ignore[misc]
    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.messages = Messages()

    def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
        if severity <= trt.ILogger.ERROR:
            self.messages.errors.append(_sentence(msg))
        elif severity == trt.ILogger.WARNING:
            self.messages.warnings.append(_sentence(msg))
        else:
            _LOG.debug("%s", msg)


LOGGER = _Logger()


@contextmanager
def collected_messages() -> Iterator[Messages]:
    """Collect what TensorRT logs inside the block, apart from what it logged before."""
    before, LOGGER.messages = LOGGER.messages, Messages()
    try:
        yield LOGGER.messages
    finally:
        LOGGER.messages = before


class BuildProgress(trt.IProgressMonitor):  # type: ignore[misc]
    """Report the innermost phase of a build that is under way, a few times a second at most."""

    def __init__(self, report: Callable[[str], None]) -> None:
        trt.IProgressMonitor.__init__(self)
        self._report = report
        self._steps: dict[str, int] = {}
        self._last = 0.0

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:  # noqa: ARG002 (trt's)
        """Note how many steps a phase has."""
        self._steps[phase_name] = num_steps

    def phase_finish(self, phase_name: str) -> None:
        """Forget a phase."""
        self._steps.pop(phase_name, None)

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Report a step. False, which cancels the build, when nobody listens any more."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_REPORTS:
            return True
        self._last = now
        try:
            self._report(f"{phase_name}: {step + 1} of {self._steps.get(phase_name, 0)}")
        except OSError:  # the pipe to the orchestrator is closed; an exception must not cross into C++
            return False
        return True


def _sentence(message: str) -> str:
    for noise in _NOISE:
        message = noise.sub("", message)
    return " ".join(message.split())
