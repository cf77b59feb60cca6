"""Look-ups with the same result in every test, done once per process."""

from functools import cache
from typing import Any

import doit.plugin
import pytest

from buildsys.plan import dependencies


def look_up_once(patch: pytest.MonkeyPatch) -> None:
    """Remember doit's plugins, for which each run reads all packages, and parsed modules."""
    plugin: Any = doit.plugin
    patch.setattr(plugin, "entry_points", cache(plugin.entry_points))
    patch.setattr(dependencies, "parse_python", cache(dependencies.parse_python))
