"""What the report says about a calibration."""

from buildsys.report import formatting as q
from buildsys.stages.calibrate.result import CalibrateResult


def key_figure(result: CalibrateResult) -> str:
    """Count the ranges and the batches behind them."""
    ranges, batches = (
        q.count(result.get("tensors")),
        q.plural(result["batches"], "batch", "batches"),
    )
    return f"{ranges} ranges, {batches}, {result['algorithm']}"
