"""doit list, info, clean, forget and ignore, with short errors."""

from __future__ import annotations

from doit.cmd_clean import Clean as DoitClean
from doit.cmd_forget import Forget as DoitForget
from doit.cmd_ignore import Ignore as DoitIgnore
from doit.cmd_info import Info as DoitInfo
from doit.cmd_list import List as DoitList

from buildsys.cli.doit_command import DoitCommand


class List(DoitCommand, DoitList):  # type: ignore[misc]
    """doit list."""


class Info(DoitCommand, DoitInfo):  # type: ignore[misc]
    """doit info."""


class Clean(DoitCommand, DoitClean):  # type: ignore[misc]
    """doit clean."""


class Forget(DoitCommand, DoitForget):  # type: ignore[misc]
    """doit forget."""


class Ignore(DoitCommand, DoitIgnore):  # type: ignore[misc]
    """doit ignore."""
