"""What a job tells about its targets: one JSON file, read by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from buildsys.errors import StageError
from buildsys.report.results.reader import adapter
from buildsys.report.run_results import TargetResult
from buildsys.store.ledger import HistoryEntry, OutputFile


@dataclass(frozen=True)
class TargetSummary:
    """The end of one target, with its files in the store."""

    result: TargetResult
    run: HistoryEntry | None = None  # in the ledger of the other machine
    record: OutputFile | None = None  # the encoded record of a target that is up to date
    reads: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, OutputFile] = field(default_factory=dict)  # path in the build folder


@dataclass(frozen=True)
class JobSummary:
    """The end of one job."""

    machine: str
    exit_code: int
    seconds: float
    error: str = ""  # why it could not build
    targets: tuple[TargetSummary, ...] = ()
    history: OutputFile | None = None  # a SQLite file


def read_summary(content: bytes, job: str) -> JobSummary:
    """Read a job's summary. Raises: StageError: it is damaged, or of another version."""
    try:
        summary: JobSummary = adapter(JobSummary).validate_json(content)
    except ValueError:
        hint = "install the same version of buildsys on all machines"
        raise StageError(f"the summary of the job {job} cannot be read", hint) from None
    return summary
