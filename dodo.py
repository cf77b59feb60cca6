"""The doit entry: loads the project that lies beside this file and yields its tasks."""

from pathlib import Path

from buildsys.cli.tasks import load

DOIT_CONFIG, task_targets = load(Path(__file__).resolve().parent)
