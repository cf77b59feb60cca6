"""buildsys nightly: build everything stale despite failures, and report on it."""

from buildsys.cli.commands.nightly.command import add_arguments, run

__all__ = ("add_arguments", "run")
