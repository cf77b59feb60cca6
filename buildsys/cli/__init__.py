"""Command line: doit tasks, commands and console output."""
