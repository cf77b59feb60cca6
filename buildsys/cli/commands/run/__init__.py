"""buildsys run: a built engine on images or arrays."""

from buildsys.cli.commands.run.command import add_arguments, run

__all__ = ("add_arguments", "run")
