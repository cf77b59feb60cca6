"""buildsys schema: JSON Schemas of manifests, for editors."""

from argparse import ArgumentParser, Namespace

from buildsys.cli.command import print_lines, shown_path
from buildsys.project.load import empty_project


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys schema``."""
    del parser


def run(options: Namespace) -> int:
    """Write the schemas, even for wrong manifests."""
    # `buildsys help` imports every command; this takes 0.4 s
    from buildsys.project.json_schema import write_schemas

    folder = empty_project(options.root).configs / "schema"
    print_lines(f"wrote {shown_path(path)}" for path in write_schemas(folder))
    return 0
