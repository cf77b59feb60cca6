"""Whether a built engine can run on this machine, told before it is deserialized. Standard library only.

``can_run("engines/resnet50/engine.engine")`` gives a verdict that is false where the engine cannot run; its text says
why, and what to do.
"""

from __future__ import annotations

from buildsys.system.compatibility.check import check
from buildsys.system.compatibility.verdict import Reason, Verdict

__all__ = ["Reason", "Verdict", "can_run", "check"]
can_run = check
