"""Examples of recorded builds."""

from collections.abc import Callable

from buildsys.history.builds import HOST, Build, Measurement

MakeBuild = Callable[..., Build]
TARGET = "bench:m:ort"
MEASUREMENT = Measurement(
    "opt", "engine", HOST, 3, 1.5, (1.25, 2.0), {"batch": 4}, 4, {"p99_ms": 2.0}
)
