"""Jobs with an unusable toolchain."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from buildsys.errors import StageError, Unavailable
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.workers.job import Job, StageResult
from buildsys.workers.result_file import write_result


def check_toolchain(job: Job, toolchain: Toolchain, log: Path) -> Unavailable | None:
    """Write the result file of ``job`` if its toolchain is unusable. Return the reason, or None.

    Raises: StageError: the interpreter hangs or crashes; the next attempt may succeed.
    """
    check = check_interpreter(toolchain)
    try:
        interpreter = check.require()
        if not interpreter.finds("numpy"):
            problem = f"the toolchain {toolchain.name} has no numpy"
            raise Unavailable(problem, f"{toolchain.pip} numpy")
    except StageError as error:
        with suppress(OSError):  # the error itself says what matters
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(f"# {job.target}\n{check.output}\n{error}\n", encoding="utf-8")
        if not isinstance(error, Unavailable):
            error.hint = f"{error.hint}; full log: {job.display_path(log)}"
            raise
        result = StageResult("unavailable", error.problem, error.hint)
        now = datetime.now(timezone.utc)
        write_result(job, result, started=now, seconds=0.0, peak_rss_mib=0.0, versions={})
        return error
    return None
