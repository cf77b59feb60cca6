"""Reader of result files, which may be missing, damaged or written by an older version.

A damaged file never counts as passed. In others, any field may be missing, and further fields are
left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from buildsys.onnx_graphs.result_types import ResultHeader
from buildsys.system.files import MAX_RESULT_BYTES, read_limited

if TYPE_CHECKING:
    from pydantic import TypeAdapter

PASSED, FAILED, UNAVAILABLE, ABSENT = "passed", "failed", "unavailable", "absent"
NOISY = "noisy"  # measured, but no figure of it can be relied on
STALE = "stale"  # passed in an earlier run, but no longer up to date
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
        """Read the stage of the target."""
        return self.target.partition(":")[0]

    @property
    def variant(self) -> str:
        """Read the target's engine, precision or point of surgery."""
        return self.target.partition(":")[2].partition(":")[2]

    @property
    def log(self) -> str:
        """Locate the target's log, relative to the model's folder."""
        return f"{self.file.removesuffix('.json')}.log" if self.file else ""


AnyResult = Result[Any]


def read_result(target: str, path: Path, file: str, kind: type[ResultHeader]) -> AnyResult:
    """Read the result of one target. A damaged file counts as failed."""

    def unusable(status: str, reason: str) -> AnyResult:
        hint = f"`buildsys build {target}` writes it again" if status == FAILED else ""
        return Result(target, status, {}, reason, hint, file)

    try:
        content = read_content(path, kind)
    except FileNotFoundError:
        return unusable(ABSENT, "there is no result file")
    except OSError as error:
        return unusable(FAILED, f"the result file cannot be read: {error}")
    except ValueError as error:
        return unusable(FAILED, f"the result file {_damage(error)}")
    if content.get("target") != target:
        return unusable(FAILED, "the result file belongs to another target")
    status, reason = content.get("status", ""), content.get("reason", "")
    if status not in (PASSED, FAILED, UNAVAILABLE, NOISY):
        status, reason = FAILED, f"unknown status {content.get('status')!r}"
    return Result(target, status, content, reason, content.get("hint", ""), file)


def read_content(path: Path, kind: type[Content]) -> Content:
    """Read the content of a result file.

    Raises: OSError, ValueError: it cannot be read, or is damaged.
    """
    hashable: Any = kind  # mypy takes a TypedDict for unhashable
    content: Content = adapter(hashable).validate_json(read_limited(path, MAX_RESULT_BYTES))
    return content


def of_type(results: Iterable[AnyResult], kind: type[Content]) -> list[Result[Content]]:
    """Select the results of one stage, given its result type."""
    folder = kind.__module__.split(".")[-2]  # the stage's folder
    return [result for result in results if result.stage == folder]


def first_content(results: Iterable[AnyResult], kind: type[Content]) -> Content:
    """Read the result of a stage with one target per model, empty without one."""
    return next((result.content for result in of_type(results, kind)), kind())


def parse(value: Mapping[str, object], kind: type[Content]) -> Content:
    """Check the content of a result file; a damaged one counts as empty."""
    hashable: Any = kind  # mypy takes a TypedDict for unhashable
    try:
        content: Content = adapter(hashable).validate_python(value)
    except ValueError:
        return adapter(hashable).validate_python({})  # type: ignore[no-any-return]
    return content


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Build the schema of a type, once."""
    from pydantic import TypeAdapter  # 60 ms, which most commands go without

    return TypeAdapter(kind)


def _damage(error: ValueError) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"cannot be read: {error}"
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"is damaged: {place}: {first['msg']}" if place else f"is damaged: {first['msg']}"
