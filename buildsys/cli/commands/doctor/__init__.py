"""buildsys doctor: checks of the installation and of built engines."""

from buildsys.cli.commands.doctor.command import add_arguments, run

__all__ = ("add_arguments", "run")
