"""The two sides of an upgrade: the same targets, built with old and with new libraries.

Each side is a process of its own interpreter with private build and state folders, and the
project's store: what is current there is restored, and what is built stays for later.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from buildsys.errors import StageError
from buildsys.execution.build_cache import store_folder
from buildsys.project.load import Project
from buildsys.report.run_results import FAILED, PASSED, RESTORED, UP_TO_DATE
from buildsys.stages.table import ENGINE, VERIFY

_GOOD = (PASSED, RESTORED, UP_TO_DATE)


@dataclass
class Side:
    """One environment with its builds."""

    title: str  # "onnxruntime 1.32.0"
    python: Path
    folder: Path  # of build and state
    variables: Mapping[str, str] = field(default_factory=dict)
    ends: dict[str, dict[str, str]] = field(default_factory=dict)  # target -> status and reason

    @property
    def build(self) -> Path:
        """The folder of its outputs."""
        return self.folder / "build"

    def problem(self, targets: Iterable[str]) -> tuple[str, str]:
        """Find the first failed target, or an engine without a check; "" and "" without any."""
        shortfall = "", ""
        for target in targets:
            end = self.ends.get(target, {})
            status, reason = end.get("status", ""), end.get("reason", "").partition("\n")[0]
            reason = reason.partition("; details: ")[0]  # files that are removed
            text = f"{target}: {reason or status or 'not built'}"
            if status == FAILED:
                return status, text
            if not shortfall[0] and target.partition(":")[0] in (ENGINE, VERIFY):
                shortfall = ("", "") if status in _GOOD else (status or FAILED, text)
        return shortfall


class Sides:
    """Builds of a project in two environments."""

    def __init__(self, project: Project, *, quiet: bool, jobs: int) -> None:
        """Prepare builds; ``quiet`` moves their progress to the error output."""
        self._project, self._jobs, self._out = project, jobs, 2 if quiet else None

    def build(self, side: Side, targets: Collection[str]) -> None:
        """Build targets, past failures, and note how each has ended."""
        answer = self._ask(side, {"build": [*targets], "jobs": self._jobs})
        side.ends = answer["ends"]

    def affected(self, side: Side, built: Side, targets: Collection[str]) -> dict[str, Any]:
        """Explain which targets that the ``built`` side has are stale in an environment."""
        answer = self._ask(side, {"explain": [*targets]}, built.folder)
        stale: dict[str, Any] = answer["stale"]
        return stale

    def _ask(self, side: Side, request: Mapping[str, Any], folder: Path | None = None) -> Any:
        folder = folder or side.folder
        folder.mkdir(parents=True, exist_ok=True)
        file, answer = folder / "request.json", folder / "answer.json"
        answer.unlink(missing_ok=True)
        file.write_text(json.dumps({"folder": str(folder), **request}), encoding="utf-8")
        project = self._project
        environment = {
            **os.environ,
            "BUILDSYS_STORE": str(store_folder(project.state)),
            "BUILDSYS_TIMING_CACHES": str(project.timing_caches()),
            "BUILDSYS_HISTORY": str(folder / "history.db"),
            "BUILDSYS_TRIALS": "0",
            "BUILDSYS_WORKER_IDLE": "0",
            **side.variables,
        }
        command = [str(side.python), "-m", "buildsys", "upgrade", "--side", str(file)]
        sys.stdout.flush()
        code = subprocess.run(
            command, cwd=project.root, env=environment, stdout=self._out, check=False
        ).returncode
        try:
            return json.loads(answer.read_bytes())
        except (OSError, ValueError):
            problem = f"buildsys ended with {code} in the environment of {side.title}"
            raise StageError(problem, f"`{side.python} -m buildsys doctor` checks it") from None
