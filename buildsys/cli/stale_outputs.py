"""Outputs of earlier runs left in the build folder by a failed run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from buildsys.cli.failure_report import read_state, replace_report, report_target
from buildsys.cli.session import Session
from buildsys.errors import BuildsysError

_FIRST = ("engine", "report", "verify", "bench")  # what people use from the build folder
_MOST_NAMES = 6


@dataclass(frozen=True)
class StaleOutputs:
    """Stale outputs in the folder of one model."""

    model: str
    targets: tuple[str, ...] = ()  # whose outputs are from an earlier run
    started: tuple[str, ...] = ()  # start of the run that built each, ISO
    report: str = ""  # on this failure, relative to the build folder; "" if none was replaced
    problem: str = ""  # an error while looking, or while writing the report

    def describe(self, folder: str) -> str:
        """Return one line on the stale outputs in ``folder``, or ""."""
        if not self.targets:
            return f"{folder}: cannot list stale outputs: {self.problem}" if self.problem else ""
        names = []
        for target in self.targets[:_MOST_NAMES]:
            stage, _, variant = (*target.split(":", 2), "")[:3]
            names.append(f"{stage} {variant}".rstrip())
        count, more = len(self.targets), len(self.targets) - _MOST_NAMES
        minutes = sorted({moment[:16].replace("T", " ") for moment in self.started})
        when = f"{minutes[-1]} UTC{' or earlier' if len(minutes) > 1 else ''}"
        outputs = "1 output is stale" if count == 1 else f"{count} outputs are stale"
        listed = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        text = f"{folder}: {outputs} (from the successful run of {when}): {listed}"
        return f"{text}; the report could not be updated: {self.problem}" if self.problem else text


def report_failure(session: Session, models: Iterable[str]) -> list[StaleOutputs]:
    """Report the failure of ``models``; return stale outputs and new reports.

    Nothing is raised, as the run has already failed.
    """
    session.checked_stale_outputs = True
    found = (_report_model(session, model) for model in models)
    return [one for one in found if one.targets or one.report or one.problem]


def _report_model(session: Session, model: str) -> StaleOutputs:
    report, problem = "", ""
    try:
        state = replace_report(session, model)
        if state.problems:
            outputs = session.actions[report_target(model)].outputs
            path = outputs.get("markdown", outputs["result"]).path
            report = path if (session.project.build / path).is_file() else ""
    except (BuildsysError, OSError) as error:
        problem = " ".join(str(error).split())
        try:
            state = read_state(session, model)
        except (BuildsysError, OSError):
            return StaleOutputs(model, problem=problem)
        if report_target(model) not in state.stale_since:
            problem = ""
    except Exception as error:  # the border: one line, with the traceback in a file
        path = os.path.relpath(session.keep_traceback(report_target(model), error))
        return StaleOutputs(model, problem=f"unexpected {type(error).__name__}; traceback: {path}")
    stale = [
        target for target in state.stale_since if not (report and target == report_target(model))
    ]

    def rank(target: str) -> int:
        stage = session.actions[target].stage
        return _FIRST.index(stage) if stage in _FIRST else len(_FIRST)

    targets = tuple(sorted(stale, key=rank))
    started = tuple(state.stale_since[target] for target in targets)
    return StaleOutputs(model, targets, started, report, problem)
