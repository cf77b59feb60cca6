"""One result from the summaries of all jobs of a run: targets, history, outputs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from buildsys.errors import CheckFailed, StageError, with_hint
from buildsys.execution.executor import Executor
from buildsys.history.database import History, history_file, import_history
from buildsys.plan.action import RESULT, Action
from buildsys.project.load import Project
from buildsys.remote.jobs import JobSummary, RemoteJob, TargetSummary
from buildsys.report.run_results import (
    FAILED,
    IGNORED,
    NOISY,
    NOT_RUN,
    PASSED,
    RESTORED,
    UNAVAILABLE,
    UP_TO_DATE,
    TargetResult,
    regression,
)
from buildsys.store.ledger import ActionRecord
from buildsys.store.object_store import Store
from buildsys.store.publish import refuse_links
from buildsys.store.record_file import (
    MAX_SHARED_BYTES,
    STATUSES,
    RecordError,
    check_name,
    decode_record,
)
from buildsys.store.shared_cache import SHARED, Depot
from buildsys.store.signatures import TrustPolicy
from buildsys.system.files import MAX_RESULT_BYTES
from buildsys.system.signatures import SignatureError

# of one target in several jobs: what a job built says more than what the next one restored
_RANKS = (NOT_RUN, IGNORED, UNAVAILABLE, UP_TO_DATE, RESTORED)
_USABLE = (PASSED, RESTORED, UP_TO_DATE)
_RECENT_BUILDS = 20


def merge_targets(
    jobs: Sequence[RemoteJob], summaries: Mapping[str, JobSummary], order: Iterable[str]
) -> dict[str, TargetSummary]:
    """Merge the targets of all jobs, in ``order``."""

    def rank(end: TargetSummary) -> int:
        status = end.result.status
        return _RANKS.index(status) if status in _RANKS else len(_RANKS)

    merged: dict[str, TargetSummary] = {}
    for job in jobs:
        summary = summaries.get(job.name)
        ends = {end.result.target: end for end in (summary.targets if summary else ())}
        reason = (summary.error if summary else "") or f"the job {job.name} ended without results"
        for target in job.targets:
            if target not in ends:
                names = (*target.split(":", 2), "")[:3]
                result = TargetResult(target, names[1], names[0], names[2], NOT_RUN, reason=reason)
                ends[target] = TargetSummary(result)
        for target, end in ends.items():
            if target not in merged or rank(end) >= rank(merged[target]):
                merged[target] = end
    return {target: merged[target] for target in order if target in merged}


def read_records(
    depot: Depot, targets: Mapping[str, TargetSummary], trust: TrustPolicy
) -> tuple[dict[str, ActionRecord], dict[str, str]]:
    """Read the records of targets; return them, and why others cannot be used.

    Raises: StageError: the store does not answer.
    """
    records: dict[str, ActionRecord] = {}
    problems: dict[str, str] = {}
    for target, end in targets.items():
        if end.record is None or end.run is None:
            if trust.is_active and end.result.status in _USABLE:
                problems[target] = "its record is not signed"
            continue
        content = depot.content(end.record, MAX_SHARED_BYTES)
        try:
            record = decode_record(content, target, end.run.key, statuses=(*STATUSES, NOISY))
            if trust.is_active:
                trust.signer(record)
        except RecordError as error:
            problems[target] = f"its record {error}"
            continue
        except SignatureError as error:
            if not trust.tolerates(error):
                problems[target] = f"its record {with_hint(error.problem, error.remedy)}"
                continue
        records[target] = replace(record, origin=SHARED)
    return records, problems


def check_results(
    project: Project, targets: Mapping[str, TargetSummary], problems: Mapping[str, str], since: str
) -> Iterator[TargetResult]:
    """Yield results with what this project knows: its trusted keys, owners, earlier runs."""
    with closing(History.read_only(history_file(project.state))) as history:
        for target, end in targets.items():
            result = replace(end.result, owner=project.models[end.result.model].data["owner"])
            if target in problems and result.status in _USABLE:
                reason = f"the other machine built it, but {problems[target]}"
                result = replace(result, status=FAILED, reason=reason, error=StageError.__name__)
            if result.status in (FAILED, UNAVAILABLE):
                builds = history.builds(target=target, limit=_RECENT_BUILDS)
                runs = [(build.status, build.started) for build in builds if build.status != NOISY]
                last_passed, regressed = regression(runs, since)
                regressed |= result.regressed  # a gate says so itself
                result = replace(result, last_passed=last_passed, regressed=regressed)
            yield result


def exit_code(results: Iterable[TargetResult], summaries: Iterable[JobSummary | None]) -> int:
    """Return the exit code of the same run on one machine."""
    errors = {result.error for result in results if result.status == FAILED}
    is_broken = any(summary is None or summary.error for summary in summaries)
    if is_broken or errors - {CheckFailed.__name__}:
        return StageError.exit_code
    return CheckFailed.exit_code if errors else 0


def merge_histories(
    depot: Depot, project: Project, run: str, summaries: Iterable[JobSummary]
) -> None:
    """Add the builds of all jobs to the history, as those of one run.

    Raises: StageError, UsageError: a history cannot be read, or ours not written.
    """
    with closing(History(history_file(project.state))) as history:
        for packed in filter(None, (summary.history for summary in summaries)):
            with TemporaryDirectory(dir=project.state) as folder:
                depot.get(packed, file := Path(folder) / "history.db")
                import_history(history, file)
        history.drop_repeated(run)  # by the next job of the same model


def fetch_log(depot: Depot, build: Path, action: Action, end: TargetSummary) -> None:
    """Copy the log of a finished target into the build folder. Raises: StageError."""
    if end.result.log and _log(action) in end.files:
        refuse_links(build, [_log(action)])
        depot.get(end.files[_log(action)], build / _log(action))


def fetch_outputs(
    depot: Depot, executor: Executor, store: Store, record: ActionRecord, end: TargetSummary
) -> None:
    """Publish the outputs of a target in the build folder, as if they were built here.

    Raises: StageError: an object is missing or damaged, or a folder cannot be written.
    """
    assert end.run is not None
    with store.lock(shared=True):
        for file in record.files.values():
            if not store.holds(file):
                store.add(file, depot.chunks(file))
        if record.status != NOISY:
            store.write_action(record)
    executor.adopt(record, end.run, end.reads)


def fetch_failure(depot: Depot, executor: Executor, action: Action, end: TargetSummary) -> None:
    """Publish what a failed check has left, and record the failure. Raises: StageError."""
    assert end.run is not None
    folders = {PurePosixPath(ref.path).parent for ref in action.outputs.values()}
    files, reason = {}, end.run.reason
    for name, file in end.files.items():
        check_name(name)
        is_output = not folders.isdisjoint(PurePosixPath(name).parents)
        if is_output and name != _log(action) and file.size <= MAX_RESULT_BYTES:
            files[name] = depot.content(file, MAX_RESULT_BYTES)
    if files:
        executor.replace_by_failure(action.target, lambda: (files, reason))
    else:
        executor.ledger.add_run(end.run)


def _log(action: Action) -> str:
    return PurePosixPath(action.outputs[RESULT].path).with_suffix(".log").as_posix()
