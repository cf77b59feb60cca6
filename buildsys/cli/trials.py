"""Trials of changes to a manifest: builds in a private folder, up to the check of one engine.

They share workers and store with the build, so golden files are not made again. Nothing of them is
published or recorded as a result of the model.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from buildsys.cli.target_names import TargetNames
from buildsys.errors import BuildsysError, ManifestErrors, StageError
from buildsys.execution.key_parts import builder_versions
from buildsys.project.load import change_model
from buildsys.project.plan import ProjectPlan
from buildsys.stages.table import VERIFY, stage_info
from buildsys.store.ledger import PASSED

if TYPE_CHECKING:
    from buildsys.cli.session import BuildSession
    from buildsys.plan.action import Action

LIMIT_S = 60.0  # for all trials of a model


class _Trial(NamedTuple):
    """A change, and the planned actions up to an engine's check, in build order."""

    change: str
    actions: dict[str, Action]
    verify: str  # its last target, "" if no engine can be checked here


Ends = dict[str, bool | str]  # change -> it verifies, it does not, or why it was not tried


def describe_trials(
    session: BuildSession, failed: Action, problem: str, changes: Sequence[str], folder: Path
) -> str:
    """Try changes of a failed action's manifest until one leads to a verified engine.

    A model's changes are tried once per run, for its first failure. Changes that are invalid or
    without effect are left out.
    """
    trials = [
        trial
        for trial in _plan_trials(session, failed.model, dict.fromkeys(changes), failed)
        if any(session.actions.get(name) != action for name, action in trial.actions.items())
        or not trial.verify
    ]
    # a second failure of the model waits, and gets the same ends
    with session.trial_locks.setdefault(failed.model, threading.Lock()):
        tried = session.tried
        ended = {trial.change: tried.get((trial.change, trial.verify), "") for trial in trials}
        has_engine = any(trial.verify for trial in trials)
        if has_engine and session.has_trials and failed.model not in session.tried_models:
            session.tried_models.add(failed.model)
            here, target = session.executor.here, failed.target
            session.on_event(target, {"event": "trying", "problem": problem})
            # benchmarks wait until the trials end
            shared = here.locks.project(target, exclusive=False, on_wait=lambda _: None)
            with shared, here.slots:
                ended |= _run(session, trials, folder, LIMIT_S, target)
            tried |= {(trial.change, trial.verify): ended[trial.change] for trial in trials}
    return describe_ends(ended)


def describe_ends(ended: Mapping[str, bool | str]) -> str:
    """Say if one of some changes leads to a verified engine."""
    for change, end in ended.items():
        if end is True:
            return f"{change} (tried: it leads to a verified engine)"
    refused = [change for change, end in ended.items() if end is False]
    none = "none leads" if refused[1:] else "it does not lead"
    texts = [f"tried {', '.join(refused)}: {none} to a verified engine"] if refused else []
    for reason in dict.fromkeys(end for end in ended.values() if isinstance(end, str)):
        untried = ", ".join(change for change, end in ended.items() if end == reason)
        texts.append(f"not tried: {untried}" + (f" ({reason})" if reason else ""))
    return "; ".join(texts)


def find_verified(
    session: BuildSession, model: str, changes: Sequence[str], limit_s: float
) -> Ends:
    """Try changes of a model's manifest until one leads to a verified engine."""
    trials = list(_plan_trials(session, model, changes))
    with session.executor.private_folder(model) as folder:
        return _run(session, trials, folder, limit_s, model)


def _plan_trials(
    session: BuildSession, model: str, changes: Iterable[str], failed: Action | None = None
) -> Iterator[_Trial]:
    """Plan the valid changes up to the check of the first engine that shows their effect."""
    project = session.project
    for change in changes:
        try:
            changed = change_model(project, project.models[model], change)
        except ManifestErrors:
            continue
        models = {model: changed}
        plan = ProjectPlan(models, builder_versions(project.root))
        names = TargetNames(replace(project, models=models), plan)
        checks = [
            target
            for target, action in plan.items()
            if (info := stage_info(action.stage)).is_required_check
            and info.planned_for == "network"
        ]
        for target, action in plan.items():
            needed = names.needed([target, *checks]) if action.stage == VERIFY else {}
            shows = failed is None or not failed.variant or failed.target in needed
            if needed and shows and not any(plan[name].alone_on_gpu for name in needed):
                order = names.in_order(needed)
                yield _Trial(change, {name: plan[name] for name in order}, target)
                break
        else:
            yield _Trial(change, {}, "")


def _run(
    session: BuildSession, trials: Sequence[_Trial], folder: Path, limit_s: float, target: str
) -> Ends:
    """Run trials until one verifies."""
    deadline = time.monotonic() + limit_s
    ended: Ends = {}
    for trial in trials:
        session.on_event(target, {"event": "progress", "message": f"trying {trial.change}"})
        end = _leads_to_engine(session, trial, folder, deadline)
        if not isinstance(end, bool):
            if session.interrupted:
                end = "interrupted"
            elif time.monotonic() >= deadline:
                end = f"all trials of a model take at most {limit_s:.0f} s"
        ended[trial.change] = end
        if end is True:
            break
    return ended


def _leads_to_engine(
    session: BuildSession, trial: _Trial, folder: Path, deadline: float
) -> bool | str:
    """Build a trial, or say why it cannot end; doubts of what it changes refuse it."""
    if not trial.verify:
        return "none of its engines can be verified on this machine"
    executor = session.executor.of_trial(trial.actions, folder)
    try:
        for target, action in list(trial.actions.items()):
            if (left_s := deadline - time.monotonic()) <= 0 or session.interrupted:
                return ""
            limit_s = min(action.timeout_s or math.inf, left_s)
            trial.actions[target] = replace(action, timeout_s=limit_s)
            outcome = executor.run(target)
            if outcome.status != PASSED:  # a library is missing
                return outcome.reason
            is_changed = session.actions.get(target) != action
            if is_changed and _has_doubts(folder / "build" / action.outputs["result"].path):
                return False
        return True
    except StageError as error:
        return error.problem if error.is_external else False
    except (BuildsysError, OSError, ValueError) as error:
        return str(error)
    finally:
        executor.close()


def _has_doubts(result: Path) -> bool:
    """Check if a passed stage doubts its result, such as a branch that tracing fixed."""
    return bool(json.loads(result.read_text(encoding="utf-8")).get("doubts"))
