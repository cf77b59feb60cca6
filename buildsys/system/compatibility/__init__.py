"""Compatibility of built engines with this machine, checked before deserialization.

``can_run("engines/resnet50/engine.engine")`` returns a result that is false if the engine cannot
run; its text gives the reasons and remedies. Standard library only.
"""

from __future__ import annotations

from buildsys.system.compatibility.check import check
from buildsys.system.compatibility.result import CompatibilityResult, Reason

__all__ = ["CompatibilityResult", "Reason", "can_run", "check"]
can_run = check
