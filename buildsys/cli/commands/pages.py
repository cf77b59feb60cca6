"""doit pages: the HTML pages of models, written again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from buildsys.cli.command import Options, ProjectCommand, print_lines
from buildsys.cli.model_filter import ModelFilter, filter_options
from buildsys.cli.project_root import shown_path
from buildsys.cli.session import Session
from buildsys.plan.project_plan import model_of


class Pages(ProjectCommand):
    """Write HTML pages of models without building anything."""

    doc_purpose = "write the HTML pages of models and their index, without building anything"
    doc_usage = "[MODEL ...]"
    options = filter_options()

    def run(self, root: Path, names: Sequence[str], options: Options) -> int:
        """Write the pages and print the path of the index."""
        from buildsys.cli.html_pages import write_pages

        session = Session.read_only(root)
        selected = session.select(names, only=ModelFilter.of(options))
        chosen = set(map(model_of, selected))
        models = [name for name in session.project.models if name in chosen]
        index = write_pages(session, models)
        print_lines([f"pages: {shown_path(index)}" if index else "no model has a page"])
        return 0
