"""What report and history say about a gate."""

from __future__ import annotations

import math
from typing import Any

from buildsys.report import formatting as q
from buildsys.report.result_files import FAILED, NOISY, PASSED
from buildsys.stages.gate.result import GateResult


def key_figure(result: GateResult) -> str:
    """List the gates with the changes of their figures."""
    texts = []
    for check in result["checks"]:
        status, change = check["status"], check.get("change")
        if status == NOISY:
            change = None
        parts = [check["metric"].replace("_", " "), "" if change is None else q.change(change)]
        if status == FAILED or change is None:
            within = "not compared" if check.get("limit") is None else "within its limit"
            words = {PASSED: within, FAILED: "beyond its limit", NOISY: "undecided"}
            word = words.get(status, status)
            parts.append(word if change is None else f"({word})")
        texts.append(" ".join(filter(None, parts)))
    return ", ".join(texts)


def history_figures(result: GateResult) -> dict[str, Any]:
    """Collect the figures measured by the gate, for the gates of later builds."""
    measured = {k: v for k, v in result.get("figures", {}).items() if math.isfinite(v)}
    options = result.get("engine_options")
    return {"engine": result.get("engine"), "engine_options": options, **measured}
