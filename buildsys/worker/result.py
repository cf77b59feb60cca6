"""The result file of a target: the common header, then its stage's figures."""

from __future__ import annotations

import json
import platform
import sys
from datetime import datetime

from buildsys.worker.job import RESULT_SCHEMA, Job, StageResult

_LIBRARIES = (
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "onnxsim",
    "onnxslim",
    "tensorrt",
    "tensorrt_rtx",
    "torch",
    "torchvision",
)


def write_result(job: Job, result: StageResult, *, started: datetime, seconds: float, peak_rss_mib: float) -> None:
    """Write the file that ``job`` names as its output ``result``."""
    header = {
        "schema": RESULT_SCHEMA,
        "target": job.target,
        "stage": job.stage,
        "model": job.model,
        "variant": job.variant,
        "status": result.status,
        "reason": result.reason,
        "hint": result.hint,
        "started": started.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "seconds": seconds,
        "peak_rss_mib": peak_rss_mib,
        "toolchain": loaded_versions(),
    }
    text = json.dumps({**header, **result.figures}, indent=2, ensure_ascii=False)
    job.outputs["result"].write_text(text + "\n", encoding="utf-8")


def loaded_versions() -> dict[str, str]:
    """Return the version of Python and of each library that this process has loaded."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    return {"python": platform.python_version(), **{name: str(found) for name, found in loaded.items() if found}}
