"""The tasks of a project beside others: ``from buildsys.dodo import task_targets`` in dodo.py.

doit's settings stay those of the dodo file.
"""

from pathlib import Path

from buildsys.cli.command import find_project
from buildsys.cli.tasks import load

# doit has changed to the folder of the dodo file
_, task_targets = load(find_project(Path.cwd()) or Path.cwd())
task_targets.session.leave_out(())
