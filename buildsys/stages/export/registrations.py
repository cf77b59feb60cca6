"""What a manifest teaches an exporter: functions of the user's files, watched while the exporter calls them.

Both exporters keep what they are taught in registries of the process, and forget it badly: they may be taught only in
a process that exports once.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from buildsys.errors import BuildsysError, StageError
from buildsys.models.user_code import (
    describe_exception,
    find_callable,
    load_module,
    module_name,
    with_article,
)
from buildsys.system.suggestions import nearest

_SHOWN = 3  # how many schemas an error shows


@dataclass(eq=False)
class Registration:
    """One operator that an exporter was taught, and how often it has asked for it."""

    op: str
    origin: str  # FILE.py:CALLABLE, or the file that registers by itself
    function: Callable[..., Any]
    opset: int | None = None
    calls: int = 0
    why_unused: str = ""  # what is known of it before the export

    @property
    def described(self) -> str:
        """Return e.g. ``aten::asinh (plugins/symbolics/asinh.py:asinh, opset 9)``."""
        return f"{self.op} ({self.origin}{'' if self.opset is None else f', opset {self.opset}'})"


class PluginFiles:
    """The user's files that teach an exporter, each executed once."""

    def __init__(self, project: Path, network: str) -> None:
        """``network`` is the file that the network came from, "" for none; it has been executed already."""
        self._project = project
        self._modules: dict[str, ModuleType] = {}
        loaded = sys.modules.get(module_name(network)) if network else None
        if loaded is not None:  # again, it would define the network's own operators twice
            self._modules[network] = loaded

    def module(self, shown: str) -> ModuleType:
        """Return the module of a file."""
        if shown not in self._modules:
            self._modules[shown] = load_module(shown, self._project)
        return self._modules[shown]

    def function(self, reference: str) -> Callable[..., Any]:
        """Return the callable ``FILE.py:CALLABLE``."""
        return find_callable(self.module(reference.rpartition(":")[0]), reference)


def network_file(source: dict[str, Any]) -> str:
    """Return the file of a network's source, "" where there is none."""
    return str(source["python"]).rpartition(":")[0] if "python" in source else ""


def watched(
    registration: Registration, check: Callable[[Any, Any], str], project: Path, takes: str
) -> Callable[..., Any]:
    """Return the registered function, which now counts its calls and fails in a sentence.

    ``check`` gets its first argument and what it returned, and says what is wrong; "" where nothing is. ``takes`` is
    what the operator's schema says.
    """

    def call(*arguments: Any, **attributes: Any) -> Any:
        registration.calls += 1
        try:
            result = registration.function(*arguments, **attributes)
        except BuildsysError:
            raise
        except Exception as error:
            hint = _schema_hint(error) or takes
            raise StageError(
                f"{registration.described} raised {describe_exception(error, project)}", hint
            ) from error
        problem = check(arguments[0] if arguments else None, result)
        if problem:
            raise StageError(f"{registration.described} {problem}", takes)
        return result

    return call


def described_result(result: Any) -> str:
    """Return e.g. ``None`` or ``an int``."""
    return "None" if result is None else with_article(type(result).__name__)


def unused(registrations: Iterable[Registration]) -> list[str]:
    """Return one sentence for every registration that the export never asked for."""
    absent = "the exporter met no such operator in the network"
    return [
        f"{f.described} was never used: {f.why_unused or absent}"
        for f in registrations
        if not f.calls
    ]


def unknown_operator(op: str, known: Iterable[str]) -> StageError:
    """Return the error of an operator that torch does not have, with the nearest names."""
    names = list(known)
    near = nearest(op, names, cutoff=0.7)
    namespace, _, name = op.partition("::")
    near = near or [other for other in names if other.endswith(f"::{name}")][:3]
    same = sorted(other for other in names if other.startswith(f"{namespace}::"))[:3]
    hint = f"did you mean {' or '.join(near)}?" if near else ""
    hint = hint or (
        f"{namespace} has {', '.join(same)}" if same else "the file that defines it is not imported"
    )
    return StageError(f"torch has no operator {op}", hint)


def shown_schemas(schemas: Sequence[Any]) -> str:
    """Return the signatures of an operator as torch writes them."""
    more = f" and {len(schemas) - _SHOWN} more" if len(schemas) > _SHOWN else ""
    return "; ".join(str(schema) for schema in schemas[:_SHOWN]) + more


@dataclass(frozen=True)
class Arity:
    """How many inputs a function may be called with by position; ``most`` is None where any number will do."""

    least: int
    most: int | None

    def takes(self, count: int) -> bool:
        """Say whether ``count`` inputs will do."""
        return self.least <= count and (self.most is None or count <= self.most)

    def __str__(self) -> str:
        """Return e.g. ``1 input``, ``2 to 3 inputs``."""
        if self.most is None:
            return f"at least {self.least} input{'' if self.least == 1 else 's'}"
        span = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{span} input{'' if span == '1' else 's'}"


def arity_of(function: Callable[..., Any], *, skip: int = 0) -> Arity | None:
    """Return how many inputs a function takes after its first ``skip`` parameters; None where that cannot be told."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    least = sum(p.default is p.empty for p in positional) - skip
    unbounded = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    return Arity(
        max(least, 0) if unbounded else least, None if unbounded else len(positional) - skip
    )


def _schema_hint(error: BaseException) -> str:
    """Return what to do where an onnxscript operator of a domain of one's own has no schema."""
    text = f"{error} {error.__cause__ or ''}"
    if "No schema registered" in text or "OpSchema not found" in text:
        return "give it one: onnxscript.values.Op(domain, name, onnx.defs.OpSchema(…)), or call it in an @script function"
    return ""
