from __future__ import annotations

from buildsys.execution.outcome import Outcome, why_stopped


def test_a_run_that_stopped_names_the_failure() -> None:
    passed, failed = (Outcome(f"export:{one}", one, 1.0) for one in ("passed", "failed"))
    ended = {one.target: one for one in (passed, failed)}
    assert why_stopped(ended) == "the run stopped when export:failed failed"
    assert why_stopped({passed.target: passed}) == "the run ended early"
