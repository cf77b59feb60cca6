"""Builds on other machines: pack, submit, follow, merge."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.executor import Executor
from buildsys.history.recorder import Checkout
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import Project
from buildsys.remote.depot import Depot
from buildsys.remote.job import STORE
from buildsys.remote.jobs import ENDED, QUEUED, Job, JobState, System, plan_jobs
from buildsys.remote.kubernetes import Kubernetes
from buildsys.remote.pack import pack_project, put_history
from buildsys.remote.ray import Ray
from buildsys.remote.results import (
    check_results,
    exit_code,
    fetch_logs,
    fetch_outputs,
    merge_histories,
    merge_targets,
    read_records,
)
from buildsys.remote.slurm import Slurm
from buildsys.remote.ssh import Ssh
from buildsys.remote.summary import JobSummary, read_summary
from buildsys.report.formatting import duration, plural
from buildsys.report.results.reader import adapter
from buildsys.report.run_results import FINISHED, INTERRUPTED, STATUSES, RunResults
from buildsys.store.ledger import utc_now
from buildsys.store.object_store import Store
from buildsys.store.signatures import NO_POLICY, TrustPolicy
from buildsys.system.files import replace_file

_SYSTEMS = {"kubernetes": Kubernetes, "ray": Ray, "slurm": Slurm, "ssh": Ssh}
_POLL_S = 1.0
_GRACE_S = 20.0  # for the summary of a job that has ended
_VARIABLES = ("BUILDSYS_CONFIGS", "BUILDSYS_STRICT")  # also decide there what is built


@dataclass(frozen=True)
class Request:
    """What to build, and how."""

    actions: Mapping[str, Action]  # in build order
    command: tuple[str, ...]  # of the jobs, before the targets: build --continue
    fetch_into: Executor | None = None  # publishes the outputs here
    checkout: Checkout | None = None
    trust: TrustPolicy = NO_POLICY
    since: str = ""  # start of the first of several runs that count as one
    show: Callable[[str], None] = print


@dataclass
class RemoteRun:
    """A finished run on other machines."""

    results: RunResults
    exit_code: int
    reports: dict[str, Path] = field(default_factory=dict)  # model -> its report, unless fetched


@dataclass(frozen=True)
class _Submitted:
    """A run that its system has; in a file until it is merged."""

    run: str
    started: str
    handles: Mapping[str, str]


def run_on(project: Project, name: str, request: Request) -> RemoteRun:
    """Build on the executor ``name``, and merge what its jobs tell.

    A run whose driver was killed is followed again if nothing has changed since.
    Raises: UsageError: the settings are wrong. StageError: the store or system cannot be used.
    """
    spec, cache = project.executor(name), project.shared_cache()
    if cache is None or cache["mode"] != "read-write":
        hint = "set `cache: {remote: …, mode: read-write}` in configs/project.yaml"
        raise UsageError("other machines build through a shared cache that they may write", hint)
    began, depot = time.monotonic(), Depot(cache["url"], project.state / "known_hosts")
    jobs = plan_jobs([*request.actions.values()], single=spec.kind == "ssh")
    options = _pack(project, depot, request)
    same_run = [spec.model_dump(mode="json"), options, request.command, [j.targets for j in jobs]]
    digest = blake3(json.dumps(same_run).encode()).hexdigest()  # variables may be secrets
    file = project.state / "remote" / f"{name}-{digest[:16]}.json"
    environment = {STORE: spec.store or cache["url"], **spec.env}
    environment |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    try:
        submitted: _Submitted = adapter(_Submitted).validate_json(file.read_bytes())
        request.show(f"the run {submitted.run} of {submitted.started} goes on")
    except (OSError, ValueError):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        submitted = _Submitted(f"{stamp}-{secrets.token_hex(3)}", utc_now(), {})
        request.show(f"{plural(len(jobs), 'job')} for {name}: run {submitted.run}")
    system: System = _SYSTEMS[spec.kind](
        spec, submitted.run, environment, file.parent, dict(submitted.handles)
    )
    if not submitted.handles:
        own = ("job", "--run", submitted.run, *options)
        system.submit([
            replace(job, command=(
                *own, "--name", job.name, "--", *request.command, *job.targets
            ))
            for job in jobs
        ])  # fmt: skip
        submitted = replace(submitted, handles=system.handles)
        replace_file(file, adapter(_Submitted).dump_json(submitted))
    summaries, interrupted = _follow(depot, system, jobs, request.show)
    run = _merge(project, depot, request, submitted, jobs, summaries)
    run.results = replace(
        run.results,
        seconds=time.monotonic() - began,
        status=INTERRUPTED if interrupted else FINISHED,
        error="interrupted; finished targets are kept" if interrupted else "",
    )
    file.unlink(missing_ok=True)
    depot.forget(submitted.run)
    return run


def _pack(project: Project, depot: Depot, request: Request) -> list[str]:
    """Pack the project; return the options of its jobs."""
    named = {
        name
        for action in request.actions.values()
        for name in (*action.sources, *action.weights, *action.reads)
        if not name.startswith("$")
    }
    has_gates = any(action.baseline for action in request.actions.values())
    packs = {
        "--pack": pack_project(depot, project, named),
        "--earlier": put_history(depot, project) if has_gates else None,
    }
    options = [f"{name}={file.digest}:{file.size}" for name, file in packs.items() if file]
    if request.checkout is not None:
        options.append(f"--checkout={json.dumps(request.checkout._asdict())}")
    return options


def _follow(
    depot: Depot, system: System, jobs: Sequence[Job], show: Callable[[str], None]
) -> tuple[dict[str, JobSummary], bool]:
    """Show the progress of all jobs until each has ended; True after an interruption."""
    summaries: dict[str, JobSummary] = {}
    try:
        for name, end in _ends(depot, system, jobs, show):
            words = _outcome(end) if isinstance(end, JobSummary) else ", ".join(filter(None, end))
            show(f"{name}: {words}")
            if isinstance(end, JobSummary):
                summaries[name] = end
    except KeyboardInterrupt:
        show("interrupted: the jobs are cancelled")
        with suppress(StageError):
            system.cancel()
        return summaries, True
    return summaries, False


def _ends(
    depot: Depot, system: System, jobs: Sequence[Job], show: Callable[[str], None]
) -> Iterator[tuple[str, JobState | JobSummary]]:
    """Yield changed states of jobs, and the summary of each that has ended."""
    waiting = {job.name: JobState("") for job in jobs}  # with the last state shown
    ended_s: dict[str, float] = {}
    states: Mapping[str, JobState] | None = {}
    while waiting:
        try:
            states = system.states({job.name for job in jobs} - waiting.keys())
        except StageError as error:  # the store may still get summaries
            if states is not None:
                show(f"{error}; waiting for it")
            states = None
        for name, last in [*waiting.items()]:
            state = JobState(ENDED) if states is None else states.get(name, JobState(ENDED))
            machine = depot.read(system.run, f"{name}.started") or b""
            if content := depot.read(system.run, f"{name}.json"):
                del waiting[name]
                yield name, read_summary(content, name)
            elif state.phase == ENDED and states is not None:
                ended_s.setdefault(name, time.monotonic())
                if time.monotonic() - ended_s[name] > _GRACE_S:
                    del waiting[name]
                    yield name, JobState("ended without results", state.detail)
            elif states is not None:
                ended_s.pop(name, None)  # its system has started it again
                if state.phase != QUEUED and machine:
                    state = JobState(f"runs on {machine.decode(errors='replace')}")
                if state != last and (state.phase == QUEUED or machine):
                    waiting[name] = state
                    yield name, state
        if waiting:
            time.sleep(_POLL_S)


def _merge(
    project: Project,
    depot: Depot,
    request: Request,
    submitted: _Submitted,
    jobs: Sequence[Job],
    summaries: Mapping[str, JobSummary],
) -> RemoteRun:
    """Merge summaries and histories; fetch what was asked for."""
    actions, started = request.actions, submitted.started
    targets = merge_targets(jobs, summaries, actions)
    is_needed = request.fetch_into is not None or request.trust.is_active
    records, problems = read_records(depot, targets if is_needed else {}, request.trust)
    ended = [summaries[job.name] for job in jobs if job.name in summaries]
    merge_histories(depot, project, submitted.run, ended)
    results = tuple(check_results(project, targets, problems, request.since or started))
    reports: dict[str, Path] = {}
    if request.fetch_into is not None:
        store = Store(store_folder(project.state))
        fetch_outputs(depot, request.fetch_into, store, actions, targets, records)
    else:
        for target, end in targets.items():
            action = actions[target]
            if action.stage == "report" and (file := end.files.get(action.outputs[RESULT].path)):
                reports[action.model] = project.state / "remote/reports" / f"{action.model}.json"
                depot.get(file, reports[action.model])
    fetch_logs(depot, project.build, actions, targets)
    merged = RunResults(started, 0.0, socket.gethostname(), targets=results)
    return RemoteRun(
        merged, exit_code(results, map(summaries.get, (j.name for j in jobs))), reports
    )


def _outcome(summary: JobSummary) -> str:
    """Describe the end of a job: 7 passed, 1 failed in 31 s on node1."""
    statuses = [end.result.status for end in summary.targets]
    counts = [f"{statuses.count(status)} {status}" for status in STATUSES if status in statuses]
    words = ", ".join(counts) or summary.error
    return f"{words} in {duration(summary.seconds)} on {summary.machine}"
