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

    doc_purpose = "list models and stages, or all targets"


class Info(DoitCommand, DoitInfo):  # type: ignore[misc]
    """doit info."""

    doc_purpose = "show the dependencies and the state of a target"


class Clean(DoitCommand, DoitClean):  # type: ignore[misc]
    """doit clean."""

    doc_purpose = "remove the files of targets"


class Forget(DoitCommand, DoitForget):  # type: ignore[misc]
    """doit forget."""

    doc_purpose = "drop the records of targets, to build them again"


class Ignore(DoitCommand, DoitIgnore):  # type: ignore[misc]
    """doit ignore."""

    doc_purpose = "skip targets and everything downstream until they are forgotten"
