"""What our own doit commands answer. They know nothing of doit; ``front.doit`` gives them a command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from buildsys.errors import UsageError


def resolve(root: Path, arguments: Sequence[str]) -> str:
    """Return the manifest of one model as its targets use it, with who set what.

    Raises: ManifestErrors: the manifests are wrong. UsageError: not one known model was named.
    """
    from buildsys.manifest.project import load_project
    from buildsys.manifest.show import resolved_text

    project = load_project(root)
    known = ", ".join(project.models) or "none yet"
    if len(arguments) != 1:
        raise UsageError("resolve takes the name of one model", f"models: {known}")
    name = arguments[0]
    if name not in project.models:
        near = nearest(name, project.models)
        raise UsageError(f"there is no model {name!r}", f"nearest: {', '.join(near)}" if near else f"models: {known}")
    return resolved_text(project.models[name])


def schema(root: Path, arguments: Sequence[str]) -> str:
    """Write the JSON Schemas that editors use into configs/schema; return what was written.

    Wrong manifests are no hindrance: the schema is what helps to put them right.
    """
    from buildsys.manifest.show import write_schemas

    if arguments:
        raise UsageError("schema takes no arguments")
    folder = root / (os.environ.get("BUILDSYS_CONFIGS") or "configs") / "schema"
    return "".join(f"wrote {os.path.relpath(path)}\n" for path in write_schemas(folder))


def workers(_root: Path, arguments: Sequence[str]) -> str:
    """Return a table of the worker servers that wait for a next run; with ``--stop`` end them all.

    They are those of this user in all projects.
    """
    from buildsys.worker import listing

    if arguments not in ([], ["--stop"]):
        raise UsageError("workers takes no arguments")
    if arguments:
        return listing.stopped_text(listing.stop_servers(os.environ))
    return listing.running_text(listing.list_servers(os.environ))


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return the few names that are most like ``name``, best first; those that contain it count as alike."""
    import difflib

    names = list(dict.fromkeys(known))
    alike = difflib.get_close_matches(name, names, n=count, cutoff=0.6)
    within = [other for other in names if name and name in other and other not in alike]
    return (alike + within)[:count]
