"""doit's JSON reporter (``-r json``) with unavailable and noisy targets."""

from __future__ import annotations

from typing import Any

from doit.reporter import JsonReporter as DoitJsonReporter
from doit.reporter import TaskResult as DoitTaskResult


class TaskResult(DoitTaskResult):  # type: ignore[misc]  # doit has no type information
    """The result of a task, with the reason of an unavailable or noisy target."""

    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of doit, and ``reason``."""
        return {**super().to_dict(), "reason": self.reason}


class JsonReporter(DoitJsonReporter):  # type: ignore[misc]
    """One JSON document; ``result`` can also be ``unavailable`` or ``noisy``."""

    def get_status(self, task: Any) -> None:
        """Start the result of a task."""
        self.t_results[task.name] = TaskResult(task)

    def add_success(self, task: Any) -> None:
        """Note a passed, unavailable or noisy target."""
        super().add_success(task)
        self._note_shortfall(task)

    def skip_uptodate(self, task: Any) -> None:
        """Note an up-to-date target; it may be unavailable or noisy since an earlier run."""
        super().skip_uptodate(task)
        self._note_shortfall(task)

    def _note_shortfall(self, task: Any) -> None:
        if shortfall := task.session.shortfall(task.name):
            result = self.t_results[task.name]
            result.result, result.reason = shortfall, task.session.recorded_reason(task.name)
