"""buildsys resolve: the manifest of a model with all defaults."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.cli.command import add_names
from buildsys.cli.session import BuildSession
from buildsys.project.load import ResolvedModel
from buildsys.system.printable import printable

_WIDEST = 60  # columns before the origins


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys resolve``."""
    add_names(parser, "MODEL")


def run(options: Namespace) -> int:
    """Print the manifest as YAML."""
    session = BuildSession.load(options.root)
    model = session.one_model("resolve", options.names)
    sys.stdout.write(printable(resolved_text(session.project.models[model])))
    return 0


def resolved_text(model: ResolvedModel) -> str:
    """Write a resolved manifest as YAML with the origin of each value."""
    lines = list(_lines(model.data, (), model.origins))
    width = min(max(len(line) for line, _ in lines), _WIDEST)
    text = [f"{line:<{width}}  # {origin}" if origin else line for line, origin in lines]
    return "\n".join((f"# {model.name}, from {model.file}", *text, ""))


def _lines(
    value: Any, path: tuple[str, ...], origins: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a map or list with their origins."""
    is_map, indent = isinstance(value, Mapping), "  " * len(path)
    for step, member in value.items() if is_map else enumerate(value):
        head, below = f"{indent}{f'{step}:' if is_map else '-'}", (*path, str(step))
        entries = member if isinstance(member, list) else ()
        if (member and isinstance(member, Mapping)) or any(
            isinstance(entry, (Mapping, list)) for entry in entries
        ):
            yield head, ""
            yield from _lines(member, below, origins)
        else:
            text = json.dumps(member, ensure_ascii=False)
            short = origins.get(".".join(path)) if member is not None else None  # latency: 5%
            yield f"{head} {text}", origins.get(".".join(below), short or "default")
