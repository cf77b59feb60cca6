"""Tolerant reader of result files.

Result files may be missing, damaged or written by an older version. An unusable file never counts
as passed. In a usable one, values of a wrong type are dropped: what the reader returns has the
types of its definition, but any field can be missing.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from buildsys.report.results.bench import BenchResult
from buildsys.report.results.calibrate import CalibrateResult
from buildsys.report.results.command import CommandResult
from buildsys.report.results.convert import ConvertResult
from buildsys.report.results.engine import EngineResult
from buildsys.report.results.export import ExportResult
from buildsys.report.results.gate import GateResult
from buildsys.report.results.header import ResultHeader
from buildsys.report.results.operators import OperatorsResult
from buildsys.report.results.program import ProgramResult
from buildsys.report.results.reference import ReferenceResult
from buildsys.report.results.report import Report
from buildsys.report.results.search import SearchResult
from buildsys.report.results.simplify import SimplifyResult
from buildsys.report.results.surgery import SurgeryResult
from buildsys.report.results.validate import ValidateResult
from buildsys.report.results.verify import VerifyResult
from buildsys.system.files import MAX_RESULT_BYTES, read_limited

PASSED, FAILED, UNAVAILABLE, ABSENT = "passed", "failed", "unavailable", "absent"
NOISY = "noisy"  # measured, but no figure of it can be relied on
STALE = "stale"  # passed in an earlier run, but no longer up to date
RESULT_TYPES: Mapping[str, type[ResultHeader]] = {
    "bench": BenchResult,
    "calibrate": CalibrateResult,
    "command": CommandResult,
    "convert": ConvertResult,
    "engine": EngineResult,
    "export": ExportResult,
    "gate": GateResult,
    "operators": OperatorsResult,
    "program": ProgramResult,
    "reference": ReferenceResult,
    "search": SearchResult,
    "simplify": SimplifyResult,
    "surgery": SurgeryResult,
    "validate": ValidateResult,
    "verify": VerifyResult,
}
_WRONG_TYPE = object()

Content = TypeVar("Content", bound=ResultHeader)


@dataclass(frozen=True)
class Result(Generic[Content]):
    """The result file of one target. ``absent``: there is none."""

    target: str
    status: str
    content: Content
    reason: str = ""
    hint: str = ""
    file: str = ""  # relative to the model's folder

    @property
    def stage(self) -> str:
        """Return the stage of the target."""
        return self.target.partition(":")[0]

    @property
    def variant(self) -> str:
        """Return the target's engine, precision or point of surgery."""
        return self.target.partition(":")[2].partition(":")[2]

    @property
    def log(self) -> str:
        """Return the path of the target's log, relative to the model's folder."""
        return f"{self.file.removesuffix('.json')}.log" if self.file else ""


AnyResult = Result[Any]


def read_results(inputs: Mapping[str, Path]) -> tuple[AnyResult, ...]:
    """Return the results of ``inputs`` (target -> file), in their order."""
    folders = [str(path.parent) for path in inputs.values()]
    folder = os.path.commonpath(folders) if folders else ""
    for target, path in inputs.items():
        stage, _, name = (*target.split(":", 2), "", "")[:3]
        if stage == "command":  # of a model that may have no other results
            own = [str(each) for each in path.parents if f"{each}/".endswith(f"/{stage}/{name}/")]
            folder = str(Path(own[0]).parents[1]) if own else folder
            break
    return tuple(
        read_result(target, path, os.path.relpath(path, folder)) for target, path in inputs.items()
    )


def read_result(target: str, path: Path, file: str) -> AnyResult:
    """Return the result of one target. An unusable file counts as failed."""

    def unusable(status: str, reason: str) -> AnyResult:
        return Result(target, status, {}, reason, file=file)

    try:
        found = json.loads(read_limited(path, MAX_RESULT_BYTES))
    except FileNotFoundError:
        return unusable(ABSENT, "there is no result file")
    except (OSError, ValueError, RecursionError) as error:
        return unusable(FAILED, f"the result file cannot be read: {error}")
    if not isinstance(found, dict) or found.get("target") != target:
        return unusable(FAILED, "the result file belongs to another target")
    content = parse(found, RESULT_TYPES.get(target.partition(":")[0], ResultHeader))
    status, reason = content.get("status", ""), content.get("reason", "")
    if status not in (PASSED, FAILED, UNAVAILABLE, NOISY):
        status, reason = FAILED, f"unknown status {found.get('status')!r}"
    return Result(target, status, content, reason, content.get("hint", ""), file)


def read_report(path: Path) -> Report | None:
    """Return the report in a result file, None if missing or damaged."""
    try:
        found = json.loads(read_limited(path, MAX_RESULT_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    report = _converter(Report)(found)
    return report if isinstance(report, Report) else None


def load_types() -> None:
    """Resolve the types of reports: it takes longer than reading one."""
    _converter(Report)


def of_type(results: Iterable[AnyResult], kind: type[Content]) -> list[Result[Content]]:
    """Return the results of one stage, given its result type."""
    return [result for result in results if RESULT_TYPES.get(result.stage) is kind]


def parse(value: Mapping[str, object], kind: type[Content]) -> Content:
    """Return the fields of ``kind`` without values of a wrong type."""
    hashable: Any = kind  # mypy doubts that of a TypedDict
    content: Content = _converter(hashable)(value)
    return content


@cache
def _converter(kind: Any) -> Callable[[Any], Any]:
    """Return a function that makes a ``kind`` of a JSON value, or ``_WRONG_TYPE``.

    Types are examined once, as that takes longer than converting a value. "nan" and "inf" are
    numbers, floats are truncated to integers, a single text is a list of one.
    """
    if is_typeddict(kind):
        return _dict_converter(kind)
    if is_dataclass(kind):
        return _instance_converter(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return _union_converter(arguments)
    if origin in (dict, Mapping):
        convert_value = _converter(arguments[1])

        def convert_mapping(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return _WRONG_TYPE
            converted = ((str(name), convert_value(one)) for name, one in value.items())
            return {name: one for name, one in converted if one is not _WRONG_TYPE}

        return convert_mapping
    if origin in (list, tuple):
        convert_list = _list_converter(arguments[0])
        if origin is list:
            return convert_list

        def convert_tuple(value: Any) -> Any:
            entries = convert_list(value)
            return entries if entries is _WRONG_TYPE else tuple(entries)

        return convert_tuple
    return lambda value: value if type(value) is kind else _scalar(value, kind)


def _dict_converter(kind: Any) -> Callable[[Any], Any]:
    fields = {name: _converter(one) for name, one in get_type_hints(kind).items()}

    def convert(value: Any) -> Any:
        # an empty one instead of a wrong type: a missing check must not vanish
        return _convert_fields(value if isinstance(value, Mapping) else {}, fields)

    return convert


def _instance_converter(kind: Any) -> Callable[[Any], Any]:
    """Return a converter; its result is ``_WRONG_TYPE`` without a required field."""
    fields = {name: _converter(one) for name, one in get_type_hints(kind).items()}

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return _WRONG_TYPE
        try:
            return kind(**_convert_fields(value, fields))
        except TypeError:
            return _WRONG_TYPE

    return convert


def _convert_fields(
    value: Mapping[str, Any], fields: Mapping[str, Callable[[Any], Any]]
) -> dict[str, Any]:
    """Return the fields in ``value`` without those of a wrong type."""
    found = {}
    for name, convert in fields.items():
        if name in value and (entry := convert(value[name])) is not _WRONG_TYPE:
            found[name] = entry
    return found


def _union_converter(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    converters = [_converter(one) for one in arguments]
    otherwise = None if NoneType in arguments else _WRONG_TYPE

    def convert(value: Any) -> Any:
        if type(value) in arguments:
            return value
        choices = (one(value) for one in converters)
        return next((choice for choice in choices if choice is not _WRONG_TYPE), otherwise)

    return convert


def _list_converter(kind: Any) -> Callable[[Any], Any]:
    convert_entry = _converter(kind)

    def convert(value: Any) -> Any:
        if kind is str and isinstance(value, str):
            return [value] if value else []
        if not isinstance(value, (list, tuple)):
            return _WRONG_TYPE
        if set(map(type, value)) <= {kind}:  # a million samples at the speed of C
            return list(value)
        entries = map(convert_entry, value)
        return [entry for entry in entries if entry is not _WRONG_TYPE]

    return convert


def _scalar(value: Any, kind: Any) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is str:
        return value if isinstance(value, str) else str(value) if is_number else _WRONG_TYPE
    if kind in (int, float):
        try:
            number = float(value) if is_number or isinstance(value, str) else math.nan
        except (ValueError, OverflowError):
            return _WRONG_TYPE
        if not is_number and not isinstance(value, str):
            return _WRONG_TYPE
        return number if kind is float else int(number) if math.isfinite(number) else _WRONG_TYPE
    return value if kind is Any or isinstance(value, kind) else _WRONG_TYPE
