"""buildsys init: make a folder a project."""

from buildsys.cli.commands.init.command import add_arguments, run

__all__ = ("add_arguments", "run")
