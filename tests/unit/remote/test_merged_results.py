"""One result from the summaries of several jobs."""

from dataclasses import replace
from pathlib import Path

import pytest

from buildsys.project.load import ResolvedModel, empty_project
from buildsys.remote.jobs import JobSummary, RemoteJob, TargetSummary, read_summary
from buildsys.remote.results import check_results, exit_code, merge_targets, read_records
from buildsys.report.result_files import adapter
from buildsys.report.run_results import TargetResult
from buildsys.store.ledger import ActionRecord, HistoryEntry, OutputFile
from buildsys.store.record_file import encode_record
from buildsys.store.shared_cache import Depot
from buildsys.store.signatures import TrustPolicy

TARGET, KEY = "engine:m:e", "ab" * 32
RECORD = ActionRecord(TARGET, KEY, {"x": "1"}, {}, "passed", "2026-01-02T03:04:05Z", 1.0)
RUN = HistoryEntry(TARGET, KEY, "passed", RECORD.started, 1.0, "")
JOBS = [RemoteJob("first", (TARGET,)), RemoteJob("second", (TARGET,), after="first")]


def end(status: str, **fields: str) -> TargetSummary:
    return TargetSummary(TargetResult(TARGET, "m", "engine", "e", status, **fields))


def summary(*ends: TargetSummary, **fields: object) -> JobSummary:
    return replace(JobSummary(0, "node", 1.0, targets=ends), **fields)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        ("passed", "restored", "passed"),  # the first one built it
        ("unavailable", "passed", "passed"),  # only the second has the library
        ("passed", "unavailable", "passed"),  # of another kind of GPU
        ("failed", "not-run", "failed"),
        ("failed", "passed", "passed"),
        ("restored", "restored", "restored"),
    ],
)
def test_what_a_job_built_counts_more_than_what_the_next_restored(
    first: str, second: str, merged: str
) -> None:
    summaries = {"first": summary(end(first)), "second": summary(end(second))}
    assert merge_targets(JOBS, summaries, [TARGET])[TARGET].result.status == merged


def test_targets_of_a_lost_job_never_ran() -> None:
    lost = merge_targets(JOBS[:1], {}, [TARGET])[TARGET].result
    assert (lost.status, lost.reason) == ("not-run", "the job first ended without results")
    broken = summary(error="the disk is full")
    result = merge_targets(JOBS[:1], {"first": broken}, [TARGET])[TARGET].result
    assert result.reason == "the disk is full"
    assert (result.stage, result.model, result.variant) == ("engine", "m", "e")


@pytest.mark.parametrize(
    ("ends", "jobs", "code"),
    [
        ([end("passed")], [summary()], 0),
        ([end("failed", error="CheckFailed")], [summary()], 1),
        ([end("failed", error="CheckFailed"), end("failed", error="StageError")], [summary()], 2),
        ([end("passed")], [summary(), None], 2),
        ([end("passed")], [summary(error="no")], 2),
    ],
)
def test_the_exit_code_is_that_of_the_worst_failure(
    ends: list[TargetSummary], jobs: list[JobSummary | None], code: int
) -> None:
    assert exit_code([one.result for one in ends], jobs) == code


def test_a_record_counts_only_with_a_trusted_signature(tmp_path: Path) -> None:
    depot = Depot(str(tmp_path))
    passed = replace(end("passed"), run=RUN, record=depot.put_bytes(encode_record(RECORD)))
    records, problems = read_records(depot, {TARGET: passed}, TrustPolicy())
    assert records == {TARGET: replace(RECORD, origin="shared")}
    assert problems == {}
    trust = TrustPolicy([f"ed25519:{'A' * 43}="])
    assert read_records(depot, {TARGET: passed}, trust) == (
        {},
        {TARGET: "its record is not signed"},
    )
    without = replace(passed, record=None)
    assert read_records(depot, {TARGET: without}, trust)[1] == {TARGET: "its record is not signed"}
    tolerant = TrustPolicy([f"ed25519:{'A' * 43}="], "warn")
    assert read_records(depot, {TARGET: passed}, tolerant)[0].keys() == {TARGET}


@pytest.mark.parametrize("change", [{"target": "engine:m:x"}, {"key": "cd" * 32}])
def test_the_record_of_something_else_is_a_problem(tmp_path: Path, change: dict[str, str]) -> None:
    depot = Depot(str(tmp_path))
    other = depot.put_bytes(encode_record(replace(RECORD, **change)))
    ends = {TARGET: replace(end("passed"), run=RUN, record=other)}
    records, problems = read_records(depot, ends, TrustPolicy())
    assert records == {}
    assert "under another key" in problems[TARGET]


def test_an_untrusted_result_fails(tmp_path: Path) -> None:
    model = ResolvedModel("m", "m.yaml", '{"owner": "vision"}', dict)
    project = replace(empty_project(tmp_path), models={"m": model})
    (result,) = check_results(project, {TARGET: end("passed")}, {TARGET: "it is not signed"}, "")
    assert (result.status, result.error, result.owner) == ("failed", "StageError", "vision")
    assert result.reason == "the other machine built it, but it is not signed"


def test_a_summary_is_read_back_and_a_damaged_one_is_an_error() -> None:
    written = summary(replace(end("passed"), run=RUN, files={"a": OutputFile(KEY, 3)}))
    content = adapter(JobSummary).dump_json(written)
    assert read_summary(content, "first") == written
    damaged = read_summary(content[:-9], "first")
    assert (damaged.exit_code, damaged.targets) == (2, ())
    assert "the summary of the job first cannot be read" in damaged.error
    for impossible in (b'{"exit_code": 9999}', b'{"exit_code": 0, "seconds": NaN}', b"[" * 10**5):
        assert read_summary(impossible, "first") == damaged
