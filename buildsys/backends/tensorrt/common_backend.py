"""The backend interface over one TensorRT library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from buildsys.backends.cuda.gpus import find_driver
from buildsys.backends.interface import (
    Figures,
    OperatorUse,
    Options,
    precision_problem,
)
from buildsys.backends.tensorrt import gpu_requirements
from buildsys.backends.tensorrt.builder_config import quantization_of
from buildsys.backends.tensorrt.engine_contenders import TimedSession
from buildsys.backends.tensorrt.enum_tables import check_fields
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.plugins.load import load_plugins
from buildsys.errors import StageError, Unavailable
from buildsys.system.files import sha256_of


def precision_hint(options: Options) -> str:
    """Return the remedy for an engine of another precision than requested."""
    if options["precision"] == "int8" and quantization_of(options) == "implicit":
        return (
            "set quantization: explicit, as a builder ignores calibrated ranges in networks that it"
            " fuses as a whole, such as transformers (docs/precision.md)"
        )
    return "lower precision_share to accept this engine, or see docs/manifest.md, Typing"


@dataclass(frozen=True)
class TensorRtBackend:
    """The functions of ``backends.interface.Backend`` as methods."""

    library: Library

    def prepare(self, options: Options) -> None:
        """Check the engine's fields against the library and this machine.

        Raises: Unavailable: a field needs a missing GPU. StageError: a field can never work.
        """
        check_fields(self.library, options)
        gpu_requirements.check_builder(self.library, options)

    def describe(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Figures:
        """Return the facts of an engine; {} without a suitable GPU.

        Raises: StageError: too few of its layers have the requested precision.
        """
        try:
            session = self.load(engine, options, operators)
        except Unavailable:
            return {}
        try:
            facts = session.describe(options["precision"])
        finally:
            session.close()
        least = options["precision_share"]  # 0 accepts any precision
        shares = facts.get("precision_shares", {}).get("layers", {})
        problem = precision_problem(options["precision"], shares, least)
        if problem and least:
            raise StageError(problem, precision_hint(options))
        return facts

    def load(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> TimedSession:
        """Load an engine on the first GPU.

        Raises: Unavailable: no GPU here, or none that the engine is built for.
        """
        gpu_requirements.check_runner(self.library, options)
        load_plugins(self.library, operators)  # an engine contains only their fields
        kernels = None
        if options.get("runtime_cache"):
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            kernels = folder / "buildsys" / "kernels" / f"{sha256_of(engine)}.cache"
        host_code = bool(options.get("version_compatible"))
        session = TimedSession(self.library, engine, kernels, host_code=host_code)
        # the host code of a plugin would not run again
        session.graphs.enabled = bool(options.get("cuda_graphs")) and not operators
        return session

    def device(self, options: Options) -> Figures:  # noqa: ARG002 (the same for all options)
        """Return the first GPU and the driver, or the reason for none."""
        driver = find_driver()
        if not driver.gpus:
            return {"kind": "gpu", "missing": driver.missing}
        gpu = driver.gpus[0]
        return {
            "kind": "gpu",
            "name": gpu.name,
            "compute_capability": gpu.compute_capability,
            "memory_bytes": gpu.memory_bytes,
            "driver_cuda": driver.cuda_version,
        }
