"""What our own doit commands answer. They know nothing of doit; ``front.command_line`` gives them a command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from buildsys.errors import UsageError
from buildsys.system.suggestions import nearest


def resolve(root: Path, arguments: Sequence[str]) -> str:
    """Return the manifest of one model as its targets use it, with who set what.

    Raises: ManifestErrors: the manifests are wrong. UsageError: not one known model was named.
    """
    from buildsys.manifest.project import load_project
    from buildsys.manifest.show import resolved_text

    project = load_project(root)
    return resolved_text(project.models[known_model("resolve", project.models, arguments)])


def repro(
    root: Path, arguments: Sequence[str], *, until: str, as_json: bool, keep: bool
) -> tuple[str, int]:
    """Build a model twice in clean folders; return which of its artifacts are byte-equal, and the exit code.

    Raises: ManifestErrors: the manifests are wrong. UsageError: no known model or stage was named.
    StageError: a build could not be made at all.
    """
    from buildsys.cli.repro.command import Request, compare_two_builds

    model, *stages = arguments or [""]
    verdict = compare_two_builds(root, Request(model, stages, until, keep))
    return verdict.as_json() if as_json else verdict.as_text(), verdict.exit_code


def ops(
    root: Path, arguments: Sequence[str], *, model: str, everything: bool, as_json: bool
) -> str:
    """Return which operators are translated, known and run by what is installed here.

    Raises: UsageError: an operator or model that there is not. StageError: the libraries cannot be asked.
    """
    from buildsys.cli.operators.command import tell

    return tell(root, arguments, model=model, everything=everything, as_json=as_json)


def known_model(command: str, models: Iterable[str], arguments: Sequence[str]) -> str:
    """Return the one model that ``arguments`` name.

    Raises: UsageError: none, more than one, or one that there is not.
    """
    names = list(models)
    known = ", ".join(names) or "none yet"
    if len(arguments) != 1:
        raise UsageError(f"{command} takes the name of one model", f"models: {known}")
    name = arguments[0]
    if name not in names:
        near = nearest(name, names)
        raise UsageError(
            f"there is no model {name!r}",
            f"nearest: {', '.join(near)}" if near else f"models: {known}",
        )
    return name


def schema(root: Path, arguments: Sequence[str]) -> str:
    """Write the JSON Schemas that editors use into configs/schema; return what was written.

    Wrong manifests are no hindrance: the schema is what helps to put them right.
    """
    from buildsys.manifest.json_schema import write_schemas

    if arguments:
        raise UsageError("schema takes no arguments")
    folder = root / (os.environ.get("BUILDSYS_CONFIGS") or "configs") / "schema"
    return "".join(f"wrote {os.path.relpath(path)}\n" for path in write_schemas(folder))


def workers(_root: Path, arguments: Sequence[str]) -> str:
    """Return a table of the worker servers that wait for a next run; with ``--stop`` end them all.

    They are those of this user in all projects.
    """
    from buildsys.workers.client import status

    if arguments not in ([], ["--stop"]):
        raise UsageError("workers takes no arguments")
    if arguments:
        return status.format_stopped(status.stop_servers(os.environ))
    return status.format_running(status.list_servers(os.environ))


def cache(root: Path, arguments: Sequence[str], options: Mapping[str, Any]) -> tuple[str, int]:
    """Show, verify or collect the store; return what to print and the exit code.

    Raises: UsageError: an unknown action or option value. ManifestErrors: the manifests are wrong.
    """
    from buildsys.cli.cache import command as cache_command

    actions = {
        "show": cache_command.show,
        "verify": cache_command.verify,
        "gc": cache_command.collect,
    }
    name = arguments[0] if arguments else "show"
    if name not in actions or len(arguments) > 1:
        raise UsageError(
            "cache takes one of show, verify, gc", "`doit help cache` tells their options"
        )
    return actions[name](root, options)
