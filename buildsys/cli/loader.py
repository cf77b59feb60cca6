"""Loader of dodo files: plans only the models that are named on doit's command line."""

from collections.abc import Mapping
from typing import Any

from doit.cmd_base import DodoTaskLoader
from doit.exceptions import InvalidCommand

from buildsys.cli.commands import COMMANDS
from buildsys.cli.target_names import STAGE_DOCS
from buildsys.cli.tasks import ProjectTasks
from buildsys.errors import BuildsysError
from buildsys.system.printable import printable


class Loader(DodoTaskLoader):  # type: ignore[misc]  # doit has no type information
    """The loader of a dodo file."""

    namespace: dict[str, Any]

    def setup(self, opt_values: Mapping[str, Any]) -> None:
        """Import the dodo file, which loads the project."""
        super().setup(opt_values)
        self._options = opt_values

    def load_tasks(self, cmd: Any, pos_args: list[str]) -> Any:
        """Make the tasks of the named models; ``pos_args`` become full names.

        Raises: InvalidCommand: there is no such target, or its manifest is broken.
        """
        if options := [word for word in pos_args if word.startswith("-")]:
            raise InvalidCommand(f"doit takes options before names, found {options[0]} after one")
        ours = {n: task for n, task in self.namespace.items() if isinstance(task, ProjectTasks)}
        self.namespace = {n: task for n, task in self.namespace.items() if n not in ours}
        others = super().load_tasks(cmd, pos_args)
        names = {name for task in others for name in (task.name, *task.targets)}
        commands = COMMANDS.keys() - STAGE_DOCS.keys() - names
        if pos_args and pos_args[0] in commands:
            raise InvalidCommand(f"doit has no command {pos_args[0]}; type buildsys {pos_args[0]}")
        try:
            for tasks in ours.values():
                tasks.choose(cmd.name, pos_args, self._options, names)
        except BuildsysError as error:
            raise InvalidCommand(printable(str(error))) from None
        self.namespace = ours
        return [*others, *super().load_tasks(cmd, pos_args)]
