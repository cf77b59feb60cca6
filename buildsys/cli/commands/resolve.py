"""buildsys resolve: the manifest of a model with all defaults."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from buildsys.cli.command import add_names
from buildsys.cli.session import BuildSession
from buildsys.project.resolved_yaml import resolved_text
from buildsys.system.printable import printable


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys resolve``."""
    add_names(parser, "MODEL")


def run(options: Namespace) -> int:
    """Print the manifest as YAML."""
    session = BuildSession.load(options.root)
    model = session.one_model("resolve", options.names)
    sys.stdout.write(printable(resolved_text(session.project.models[model])))
    return 0
