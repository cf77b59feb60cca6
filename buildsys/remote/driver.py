"""Builds on other machines: pack, submit, follow, merge."""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from buildsys.errors import StageError, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.executor import Executor
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import Project
from buildsys.remote.job import STORE
from buildsys.remote.jobs import (
    ENDED,
    QUEUED,
    RUNNING,
    JobState,
    JobSummary,
    RemoteJob,
    System,
    plan_jobs,
    read_summary,
)
from buildsys.remote.pack import named_files, pack_project, put_earlier_builds
from buildsys.remote.ray import Ray
from buildsys.remote.results import (
    check_results,
    exit_code,
    fetch_failure,
    fetch_log,
    fetch_outputs,
    merge_histories,
    merge_targets,
    read_records,
)
from buildsys.remote.systems import Kubernetes, Slurm, Ssh
from buildsys.report.formatting import duration, plural
from buildsys.report.run_results import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    STATUSES,
    RunResults,
    TargetResult,
)
from buildsys.store.ledger import Ledger, utc_now
from buildsys.store.object_store import Store
from buildsys.store.shared_cache import Depot
from buildsys.store.signatures import NO_POLICY, TrustPolicy
from buildsys.store.state_db import StateDb
from buildsys.system.files import replace_file
from buildsys.system.git import Checkout

_SYSTEMS = {"kubernetes": Kubernetes, "ray": Ray, "slurm": Slurm, "ssh": Ssh}
_POLL_S = 1.0
_VARIABLES = ("BUILDSYS_CONFIGS", "BUILDSYS_STRICT")  # also decide there what is built


@dataclass(frozen=True)
class Request:
    """What to build, and how."""

    actions: Mapping[str, Action]  # in build order
    command: tuple[str, ...]  # before the jobs' targets: build --continue
    fetch_into: Executor | None = None  # publishes the outputs here
    checkout: Checkout | None = None
    trust: TrustPolicy = NO_POLICY
    since: str = ""  # start of the first of several runs that count as one
    show: Callable[[str], None] = print


class RemoteRun(NamedTuple):
    """A finished run on other machines."""

    results: RunResults
    exit_code: int
    reports: dict[str, Path]  # model -> its report, unless fetched


def run_on(project: Project, name: str, request: Request) -> RemoteRun:
    """Build on the executor ``name``, and merge what its jobs tell.

    A run whose driver was killed is followed again if nothing has changed since.
    Raises: UsageError: the settings are wrong. StageError: the store or system cannot be used.
    """
    spec, cache = project.executor(name), project.shared_cache()
    if cache is None or cache["mode"] != "read-write":
        settings = os.path.relpath(project.configs / "project.yaml", project.root)
        hint = f"set `cache: {{remote: …, mode: read-write}}` in {settings}"
        raise UsageError("other machines build through a shared cache that they may write", hint)
    began, depot = time.monotonic(), Depot(cache["url"], project.state / "known_hosts")
    jobs = plan_jobs([*request.actions.values()], single=spec.kind == "ssh")
    options = _pack(project, depot, request)
    same_run = [spec.model_dump(mode="json"), options, request.command, [j.targets for j in jobs]]
    digest = blake3(json.dumps(same_run).encode()).hexdigest()  # variables may be secrets
    file = project.state / "remote" / f"{name}-{digest[:16]}.json"
    environment = {STORE: spec.store or cache["url"], **spec.env}
    environment |= {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    try:  # a run that was submitted, and not merged
        run, started, handles = json.loads(file.read_bytes())
        request.show(f"the run {run} of {started} goes on")
    except (OSError, ValueError):
        run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        started, handles = utc_now(), {}
        request.show(f"{plural(len(jobs), 'job')} for {name}: run {run}")
    system: System = _SYSTEMS[spec.kind](spec, run, environment, file.parent, handles)
    if not handles:
        words = ("job", "--run", run, *options)
        for number, job in enumerate(jobs):
            command = (*words, "--name", job.name, "--", *request.command, *job.targets)
            jobs[number] = replace(job, command=command)
        system.submit(jobs)
    if system.handles:  # else it ends with this process
        replace_file(file, json.dumps([run, started, system.handles]).encode())
    summaries: dict[str, JobSummary] = {}
    error = ""
    try:
        _follow(depot, system, jobs, summaries, request.show)
    except KeyboardInterrupt:
        error = "interrupted; finished targets are kept"
        request.show("interrupted: the jobs are cancelled")
        with suppress(StageError):
            system.cancel()
    results, reports = _merge(project, depot, request, run, started, jobs, summaries)
    file.unlink(missing_ok=True)
    depot.forget(run)
    seconds, status = time.monotonic() - began, INTERRUPTED if error else FINISHED
    ended = RunResults(started, seconds, socket.gethostname(), status, error, results)
    code = exit_code(results, [summaries.get(job.name) for job in jobs])
    return RemoteRun(ended, code, reports)


def _pack(project: Project, depot: Depot, request: Request) -> list[str]:
    """Pack the project; return the options of its jobs."""
    named = named_files(project, request.actions.values())
    gates = [target for target, action in request.actions.items() if action.baseline]
    packs = {
        "--pack": pack_project(depot, project, named),
        "--earlier": put_earlier_builds(depot, project, gates),
    }
    options = [f"{name}={file.digest}:{file.size}" for name, file in packs.items() if file]
    if request.checkout is not None:
        options.append(f"--checkout={json.dumps(request.checkout._asdict())}")
    return options


def _follow(
    depot: Depot,
    system: System,
    jobs: Sequence[RemoteJob],
    summaries: dict[str, JobSummary],
    show: Callable[[str], None],
) -> None:
    """Show the progress of all jobs until each has ended; add their ``summaries``."""
    waiting = {job.name: "" for job in jobs}  # with the last state shown
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
            state = JobState(RUNNING) if states is None else states.get(name, JobState(ENDED))
            words = ", ".join(filter(None, state))
            if state.phase != QUEUED and (content := depot.read(system.run, f"{name}.json")):
                summaries[name] = read_summary(content, name)
                words = _outcome(summaries[name])
            elif state.phase != ENDED:
                ended_s.pop(name, None)  # its system has started it again
            elif time.monotonic() - ended_s.setdefault(name, time.monotonic()) <= system.grace_s:
                continue
            else:
                words = f"ended without results, {state.detail}"
            if words != last:
                waiting[name] = words
                show(f"{name}: {words}")
            if name in summaries or name in ended_s:
                del waiting[name]
        if waiting:
            time.sleep(_POLL_S)


def _merge(
    project: Project,
    depot: Depot,
    request: Request,
    run: str,
    since: str,
    jobs: Sequence[RemoteJob],
    summaries: Mapping[str, JobSummary],
) -> tuple[tuple[TargetResult, ...], dict[str, Path]]:
    """Merge summaries and histories; fetch outputs, or only the reports of models."""
    actions, executor = request.actions, request.fetch_into
    targets = merge_targets(jobs, summaries, actions)
    gates = {target: end for target, end in targets.items() if actions[target].baseline}
    is_needed = executor is not None or request.trust.is_active  # else for the next run of gates
    records, problems = read_records(depot, targets if is_needed else gates, request.trust)
    merge_histories(depot, project, run, summaries.values())
    results = tuple(check_results(project, targets, problems, request.since or since))
    reports: dict[str, Path] = {}
    store, folder = Store(store_folder(project.state)), project.state / "remote/reports"
    for target, end in targets.items():
        action = actions[target]
        if executor is not None and target in records:
            fetch_outputs(depot, executor, store, records[target], end)
        elif executor is not None and end.run and end.result.status == FAILED:
            fetch_failure(depot, executor, action, end)
        elif action.stage == "report" and (file := end.files.get(action.outputs[RESULT].path)):
            reports[action.model] = folder / f"{action.model}.json"
            depot.get(file, reports[action.model])
        fetch_log(depot, project.build, action, end)
    if executor is None:
        with closing(StateDb(project.state / "state.db")) as db:
            for target in filter(records.__contains__, gates):
                Ledger(db).add(records[target])
    return results, reports


def _outcome(summary: JobSummary) -> str:
    """Describe the end of a job: 7 passed, 1 failed in 31 s on node1."""
    statuses = [end.result.status for end in summary.targets]
    counts = [f"{statuses.count(status)} {status}" for status in STATUSES if status in statuses]
    words = ", ".join(counts) or summary.error
    return f"{words} in {duration(summary.seconds)} on {summary.machine}"
