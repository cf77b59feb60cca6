"""Names of targets on the command line: one syntax for all commands.

STAGE:MODEL[:VARIANT] is the full name. MODEL:STAGE[:VARIANT] names the same target, MODEL:ENGINE an
engine, MODEL and ``build:MODEL`` a whole model, STAGE that stage of all models.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from buildsys.errors import UsageError
from buildsys.plan.project_plan import ProjectPlan

STAGE_DOCS = {
    "build": "everything of every model (the default)",
    "operators": "build functions and libraries of custom operators",
    "export": "export to ONNX",
    "reference": "record golden inputs and outputs of the original model",
    "surgery": "edit graphs as their manifests say",
    "simplify": "simplify the exported graphs",
    "calibrate": "measure the ranges for int8 and fp8",
    "convert": "convert graphs to other precisions",
    "validate": "compare the graphs in ONNX Runtime with the original model",
    "engine": "build the engines",
    "verify": "compare the engines with the golden outputs",
    "bench": "benchmark the engines",
    "report": "write the reports",
}


def full_name(name: str, models: Collection[str], actions: ProjectPlan) -> str | None:
    """Return the full name of a target or group, None for an unknown name.

    Only the models in ``name`` are planned.
    Raises: UsageError: the name is ambiguous.
    """
    found = _readings(name, models, actions)
    if name in found and name in actions:  # as printed everywhere
        return name
    if len(found) > 1:
        # a group with the ambiguous name is spelled as a pattern
        spelled = (f"{one}:*" if one == name else one for one in found)
        raise UsageError(f"{name!r} is ambiguous", f"name one of {', '.join(spelled)}")
    return found[0] if found else None


def _readings(name: str, models: Collection[str], actions: ProjectPlan) -> list[str]:
    """Return the full names that a name may stand for."""
    found: dict[str, None] = {}
    parts = name.split(":")
    if len(parts) == 1:
        found |= dict.fromkeys([name] if name in STAGE_DOCS else [])
        found |= dict.fromkeys([f"build:{name}"] if name in models else [])
    elif len(parts) == 2:
        for stage, model in (parts, parts[::-1]):
            planned = actions.of(model).values() if stage in STAGE_DOCS else ()
            if (stage == "build" and planned) or any(one.stage == stage for one in planned):
                found[f"{stage}:{model}"] = None
        engine = f"engine:{parts[0]}:{parts[1]}"
        found |= dict.fromkeys([engine] if engine in actions else [])
    elif len(parts) == 3:
        first, second, variant = parts
        both = (f"{first}:{second}:{variant}", f"{second}:{first}:{variant}")
        found |= dict.fromkeys(one for one in both if one in actions)
    return list(found)


def matching(pattern: str, actions: ProjectPlan) -> list[str]:
    """Return the targets of a pattern with ``*``.

    Full names come first; a pattern that matches none is compared with the other spellings.
    """
    found = [target for target in actions if fnmatchcase(target, pattern)]
    if found:
        return found
    for target, action in actions.items():
        model, stage, variant = action.model, action.stage, action.variant
        spellings = [model, f"build:{model}", f"{model}:{stage}", f"{model}:{stage}:{variant}"]
        spellings += [f"{model}:{variant}"] if stage == "engine" else []
        if any(fnmatchcase(one, pattern) for one in spellings):
            found.append(target)
    return found
