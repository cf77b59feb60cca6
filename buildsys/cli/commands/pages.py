"""buildsys pages: the HTML pages of models, written again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from buildsys.cli.command import add_names, print_lines
from buildsys.cli.project_root import shown_path
from buildsys.cli.session import Session
from buildsys.cli.target_names import ModelFilter, add_filter
from buildsys.project.plan import model_of


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys pages``."""
    add_names(parser, "[MODEL ...]")
    add_filter(parser)


def run(options: Namespace) -> int:
    """Write the pages and print the path of the index."""
    from buildsys.cli.html_pages import write_pages

    session = Session.read_only(options.root)
    selected = session.select(options.names, only=ModelFilter.of(options))
    chosen = set(map(model_of, selected))
    models = [name for name in session.project.models if name in chosen]
    index = write_pages(session, models)
    print_lines([f"pages: {shown_path(index)}" if index else "no model has a page"])
    return 0
