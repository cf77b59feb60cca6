"""Results of stages, read and described as the folders of their stages say."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.report.result_files import AnyResult, adapter, parse, read_result
from buildsys.stages.table import STAGE_INFO


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
    results = []
    for target, path in inputs.items():
        stage, model = target.split(":")[:2]
        file = str(path).rpartition(f"/{model}/{stage}/")[2]
        results.append(read_result(target, path, f"{stage}/{file}", result_type(stage)))
    return tuple(results)
