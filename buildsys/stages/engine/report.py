"""What report and history say about an engine."""

from typing import Any

from buildsys.report import formatting as q
from buildsys.report.engines import executed_precision
from buildsys.stages.engine.result import EngineResult


def key_figure(result: EngineResult) -> str:
    """Describe the size and the precision of the engine."""
    refitted = "refitted" if "refitted_from" in result else ""
    share = result.get("delegated", {}).get("share")
    delegated = "" if share is None else f"{q.percent(share, 0)} of the operators delegated"
    parts = (q.size(result["engine_bytes"]), executed_precision(result), delegated, refitted)
    return ", ".join(filter(None, parts))


def history_figures(result: EngineResult) -> dict[str, Any]:
    """Collect the engine's size, memory, build time and digest."""
    names = ("build_seconds", "device_memory_bytes", "engine_sha256")
    return {"bytes": result.get("engine_bytes"), **{name: result.get(name) for name in names}}
