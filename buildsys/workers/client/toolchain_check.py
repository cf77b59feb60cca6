"""Jobs that no process can be started for, because the toolchain that they need cannot be used here."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from buildsys.errors import StageError, Unavailable
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job, StageResult
from buildsys.workers.result_file import write_result


def refusal(job: Job, toolchain: Toolchain, log: Path) -> Unavailable | None:
    """Return why ``job`` cannot run in its toolchain, with the result file written; None where it can.

    Raises: StageError: the interpreter hangs or crashes, which may be otherwise the next time.
    """
    found = check_interpreter(toolchain)
    try:
        identity = found.require()
        if not identity.finds("numpy"):
            raise Unavailable(
                f"the toolchain {toolchain.name} has no numpy", f"{toolchain.pip} numpy"
            )
    except Unavailable as reason:
        _write_log(job, log, reason, found.output)
        result = StageResult("unavailable", reason.problem, reason.hint)
        write_result(
            job,
            result,
            started=datetime.now(timezone.utc),
            seconds=0.0,
            peak_rss_mib=0.0,
            versions={},
        )
        return reason
    except StageError as error:
        _write_log(job, log, error, found.output)
        error.hint = f"{error.hint}; full log: {job.display_path(log)}"
        raise
    return None


def _write_log(job: Job, log: Path, error: StageError, printed: str) -> None:
    with suppress(OSError):  # a courtesy: the error says what matters
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"# {job.target}\n{printed}\n{error}\n", encoding="utf-8")
