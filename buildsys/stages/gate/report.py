"""What report and history say about a gate."""

from __future__ import annotations

import math
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.result_files import FAILED, NOISY, PASSED
from buildsys.stages.gate.result import GateResult


def key_figure(result: GateResult) -> str:
    """List the gates with the changes of their figures."""
    words = {FAILED: "beyond its limit", NOISY: "undecided"}
    texts = []
    for check in result["checks"]:
        title, status, change = (
            check["metric"].replace("_", " "),
            check["status"],
            check.get("change"),
        )
        word = words.get(status, status)
        if status == PASSED:
            word = "not compared" if check.get("limit") is None else "within its limit"
        if change is None or status == NOISY:
            texts.append(f"{title} {word}")
        else:
            texts.append(f"{title} {q.change(change)}" + (f" ({word})" if status == FAILED else ""))
    return ", ".join(texts)


def history_figures(result: GateResult) -> dict[str, Any]:
    """Collect the figures measured by the gate."""
    return {k: v for k, v in result.get("figures", {}).items() if math.isfinite(v)}
