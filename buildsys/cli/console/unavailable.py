"""Unavailable targets of a run, grouped by cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from buildsys.cli.console.target_line import ConsoleLine
from buildsys.report.formatting import duration, first_names, plural
from buildsys.stages.table import ENGINE, ENGINE_STAGES, target_of

_SHOWN_NAMES = 3
Groups = list[list[ConsoleLine]]


def engine_of(line: ConsoleLine) -> str:
    """Return the engine target needed by a target, "" for none."""
    is_of_engine = line.stage in ENGINE_STAGES and line.stage != ENGINE
    return target_of(ENGINE, line.model, line.variant) if is_of_engine else ""


def causes(lines: Iterable[ConsoleLine], reason: Callable[[ConsoleLine], str]) -> dict[str, str]:
    """Return the causes by target, for a missing engine those of the engine."""
    gone = {line.target: line for line in lines if line.status == "unavailable"}
    return {target: reason(gone.get(engine_of(line), line)) for target, line in gone.items()}


def table_rows(lines: Sequence[ConsoleLine], cause: Mapping[str, str]) -> Groups:
    """Return the lines of a model, engines with equal causes and stages grouped."""
    stages: dict[tuple[str, str], tuple[str, ...]] = {}
    for line in lines:
        if why := cause.get(line.target):
            stages[line.variant, why] = (*stages.get((line.variant, why), ()), line.stage)
    groups: dict[tuple[str, ...], list[ConsoleLine]] = {}
    for line in lines:
        why = cause.get(line.target)
        group = (why, *stages[line.variant, why]) if why else (line.target,)
        groups.setdefault(group, []).append(line)
    return [*groups.values()]


def lines_by_cause(lines: Iterable[ConsoleLine], cause: Mapping[str, str]) -> Groups:
    """Return the unavailable lines, one group for each cause."""
    groups: dict[str, list[ConsoleLine]] = {}
    for line in lines:
        if line.target in cause:
            groups.setdefault(cause[line.target], []).append(line)
    return [*groups.values()]


def row_title(group: Sequence[ConsoleLine]) -> str:
    """Return stages and engines of a group: ``verify, bench trt-fp32, trt-fp16``."""
    stages, variants = (_unique(group, part) for part in ("stage", "variant"))
    return f"{', '.join(stages)} {', '.join(variants)}".rstrip()


def took_together(group: Iterable[ConsoleLine]) -> str:
    """Return the time of a group, "" if none of it ran."""
    taken = [line.seconds for line in group if line.seconds is not None]
    return duration(sum(taken)) if taken else ""


def target_names(group: Sequence[ConsoleLine]) -> str:
    """Return the names of a group, with the braces of a shell if regular."""
    stages, models, variants = (_unique(group, part) for part in ("stage", "model", "variant"))
    if len(models) > 1:
        return f"{plural(len(group), 'target')} of {plural(len(models), 'model')}"
    if len(group) != len(stages) * len(variants):
        return first_names([line.target for line in group], _SHOWN_NAMES)
    parts = (stages, models, variants)
    braced = [one[0] if len(one) == 1 else f"{{{','.join(one)}}}" for one in parts]
    return ":".join(braced).rstrip(":")


def _unique(group: Iterable[ConsoleLine], part: str) -> list[str]:
    return list(dict.fromkeys(getattr(line, part) for line in group))
