"""Results of stages, read and described as the folders of their stages say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.report.result_files import AnyResult, adapter, parse, read_result
from buildsys.stages.table import COMMAND, STAGE_INFO


def key_figure(stage: str, result: Mapping[str, Any]) -> str:
    """Describe the result of a target in a few words, "" if it is incomplete."""
    describe = stage_report(stage, "key_figure")
    try:
        return str(describe(parse(result, result_type(stage)))) if describe else ""
    except KeyError:
        return ""


@cache
def stage_report(stage: str, function: str) -> Any:
    """Load a function of the `report.py` of a stage, None if it has none."""
    row = STAGE_INFO.get(stage)
    if row is None or not row.result:
        return None
    return getattr(import_module(f"{row.package}.report"), function, None)


@cache
def result_type(stage: str) -> type[ResultHeader]:
    """Load the type of a stage's result file; other stages have the common fields."""
    row = STAGE_INFO.get(stage)
    if row is None or not row.result:
        return ResultHeader
    kind: type[ResultHeader] = getattr(import_module(f"{row.package}.result"), row.result)
    return kind


def load_result_types() -> None:
    """Build the schemas of all result files: it takes longer than reading them."""
    for stage in STAGE_INFO:
        kind: Any = result_type(stage)
        adapter(kind)
        stage_report(stage, "key_figure")


def read_results(inputs: Mapping[str, Path]) -> tuple[AnyResult, ...]:
    """Read the results of ``inputs`` (target -> file), in their order."""
    folders = [str(path.parent) for path in inputs.values()]
    folder = os.path.commonpath(folders) if folders else ""
    for target, path in inputs.items():
        stage, _, name = (*target.split(":", 2), "", "")[:3]
        if stage == COMMAND:  # its model may have no other results
            own = [up for up in path.parents if f"{up}/".endswith(f"/{stage}/{name}/")]
            folder = str(own[0].parents[1]) if own else folder
            break
    return tuple(
        read_result(
            target, path, os.path.relpath(path, folder), result_type(target.partition(":")[0])
        )
        for target, path in inputs.items()
    )
