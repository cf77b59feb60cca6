"""Commands of doit under entry points of an older installation; to be removed with these."""

from doit.cmd_clean import Clean
from doit.cmd_forget import Forget
from doit.cmd_help import Help
from doit.cmd_ignore import Ignore
from doit.cmd_info import Info
from doit.cmd_list import List
from doit.cmd_run import Run

__all__ = ("Clean", "Forget", "Help", "Ignore", "Info", "List", "Run")
