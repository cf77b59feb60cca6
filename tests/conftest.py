"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# a slow or busy machine is no failure
settings.register_profile("buildsys", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("buildsys")

# worker servers end with the run that started them, unless a test asks for more
os.environ["BUILDSYS_WORKER_IDLE"] = "0"
