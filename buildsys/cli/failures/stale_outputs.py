"""What a run that did not get through leaves in the build folder of earlier passes, in one line per model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from buildsys.cli.failures.failure_report import put_in_place, report_target
from buildsys.cli.failures.model_status import Present, look_at
from buildsys.cli.session import Session
from buildsys.errors import BuildsysError

_FIRST = ("engine", "report", "verify", "bench")  # what people take from there
_MOST_NAMES = 6


@dataclass(frozen=True)
class LeftBehind:
    """What is left in the folder of one model."""

    model: str
    targets: tuple[
        str, ...
    ] = ()  # whose outputs are of an earlier pass, and not what the manifest asks for now
    moments: tuple[str, ...] = ()  # when that pass made each, ISO
    report: str = ""  # on this failure, relative to the build folder; empty where there was none to give way to it
    problem: str = ""  # what went wrong on the way

    def line(self, folder: str) -> str:
        """Return what is left in ``folder``, in one line; an empty one where nothing is."""
        if not self.targets:
            return (
                f"{folder}: what is left there of earlier passes cannot be told: {self.problem}"
                * bool(self.problem)
            )
        names = ", ".join(map(_name, self.targets[:_MOST_NAMES]))
        more = len(self.targets) - _MOST_NAMES
        names += f" and {more} more" if more > 0 else ""
        minutes = sorted({moment[:16].replace("T", " ") for moment in self.moments})
        when = f"{minutes[-1]} UTC{' or earlier' if len(minutes) > 1 else ''}"
        verb = "is" if len(self.targets) == 1 else "are"
        text = f"{folder}: {names} {verb} still of the pass of {when}, not what is asked for now"
        return f"{text} (and the report does not say so: {self.problem})" if self.problem else text


def after_failure(session: Session, models: Iterable[str]) -> list[LeftBehind]:
    """Put reports on the failure in place in the folders of ``models``; return where something is left or reported.

    Nothing is raised: the run has failed already, and of that it must tell.
    """
    session.looked_back = True
    return [
        one
        for one in (_of_model(session, model) for model in models)
        if one.targets or one.report or one.problem
    ]


def _of_model(session: Session, model: str) -> LeftBehind:
    try:
        present = put_in_place(session, model)
        report = _report_file(session, model) if present.short else ""
    except (BuildsysError, OSError) as error:
        return _without_report(session, model, _one_line(error))
    except (
        Exception
    ) as error:  # the border: what nobody expected is told in one line and kept in full
        path = os.path.relpath(session.keep_traceback(report_target(model), error))
        return LeftBehind(model, problem=f"unexpected {type(error).__name__}; traceback: {path}")
    left = [target for target in present.left if not (report and target == report_target(model))]
    return _told(session, LeftBehind(model, report=report), present, left)


def _without_report(session: Session, model: str, problem: str) -> LeftBehind:
    try:
        present = look_at(session, model)
    except (BuildsysError, OSError):
        return LeftBehind(model, problem=problem)
    found = LeftBehind(model, problem=problem if report_target(model) in present.left else "")
    return _told(session, found, present, list(present.left))


def _told(session: Session, found: LeftBehind, present: Present, left: Sequence[str]) -> LeftBehind:
    ordered = sorted(left, key=lambda target: _rank(session.actions[target].stage))
    return replace(
        found, targets=tuple(ordered), moments=tuple(present.left[target] for target in ordered)
    )


def _report_file(session: Session, model: str) -> str:
    outputs = session.actions[report_target(model)].outputs
    path: str = outputs.get("markdown", outputs["result"]).path
    return path if (session.project.build / path).is_file() else ""


def _name(target: str) -> str:
    stage, _, variant = (*target.split(":", 2), "")[:3]
    return f"{stage} {variant}".rstrip()


def _rank(stage: str) -> int:
    return _FIRST.index(stage) if stage in _FIRST else len(_FIRST)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
