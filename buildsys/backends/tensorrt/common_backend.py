"""Requirements of building and running engines on this machine's GPU."""

import os
from dataclasses import dataclass
from pathlib import Path

from buildsys.backends.cuda_gpus import Gpu, find_driver, gpu_facts
from buildsys.backends.interface import Figures, OperatorUse, Options
from buildsys.backends.layer_figures import check_precision
from buildsys.backends.tensorrt.compatibility import join_or
from buildsys.backends.tensorrt.library import TensorRTLibrary, check_fields
from buildsys.backends.tensorrt.plugin_loading import load_plugins
from buildsys.backends.tensorrt.session import TensorRtSession
from buildsys.backends.tensorrt_rtx.description import DESCRIPTION
from buildsys.errors import StageError, Unavailable
from buildsys.system.files import sha256_of

# TensorRT-RTX's builder needs the CUDA driver for them
_GPU_FLAGS = ("refit", "refit_identical", "strip_plan")
_FIRST_WITH = {"fp16": (5, 3), "int8": (6, 1), "bf16": (8, 0), "fp8": (8, 9)}
_PRECISION_HINT = "lower precision_share to accept this engine, or see docs/precision.md"


def check_builder(library: TensorRTLibrary, options: Options) -> None:
    """Check an engine's fields against this machine before a build."""
    precision = options["precision"]
    if not library.has("builds for other GPUs"):
        gpu = _gpu(library, f"{library.title} builds engines on the GPU that they are for")
        layers = [entry["precision"] for entry in options.get("layer_precisions", ())]
        for needed in (precision, *layers):
            if not computes_in(needed, gpu.compute_capability):
                raise Unavailable(f"{_title(gpu)} does not compute in {needed}", _where(needed))
        return
    capabilities = options["compute_capabilities"]
    if unsuitable := [name for name in capabilities if not computes_in(precision, name)]:
        raise StageError(
            f"GPUs of compute capability {join_or(unsuitable)} do not compute in {precision}",
            f"remove them from compute_capabilities; {_where(precision)}",
        )
    needs = [f"the builder flag {flag}" for flag in _GPU_FLAGS if options["flags"].get(flag)]
    if "current" in capabilities:
        needs.append("the compute capability 'current'")
    if needs:
        purpose = f"{' and '.join(needs)} can only be used on a machine with an NVIDIA GPU"
        _gpu(library, purpose)


def computes_in(precision: str, compute_capability: str) -> bool:
    """Check whether GPUs of a compute capability compute in a precision.

    Source: TensorRT support matrix, "Hardware and Precision"; CUDA programming guide for 6.1, whose
    fp16 is slow.
    """
    if compute_capability == "current":
        return True
    capability = tuple(int(part) for part in compute_capability.split("."))
    is_slow = (precision, capability) == ("fp16", (6, 1))
    return capability >= _FIRST_WITH.get(precision, (0,)) and not is_slow


def check_runner(library: TensorRTLibrary, options: Options) -> None:
    """Check an engine's options against this machine's GPU before a run."""
    gpu = _gpu(library, f"{library.title} engines run on NVIDIA GPUs")
    built_for = options.get("compute_capabilities", ("current",))
    if gpu.compute_capability not in built_for and "current" not in built_for:
        raise Unavailable(
            f"the engine is built for compute capability {join_or(built_for)}, and this is"
            f" {_title(gpu)}",
            f"add '{gpu.compute_capability}' to the engine's compute_capabilities",
        )


def _gpu(library: TensorRTLibrary, purpose: str) -> Gpu:
    """Return the first GPU if the library runs on it."""
    driver = find_driver()
    if not driver.gpus:
        hint = driver.remedy or "run it on a machine with such a GPU"
        raise Unavailable(f"{purpose}, and here {driver.missing}", hint)
    gpu = driver.gpus[0]
    generations = DESCRIPTION.gpu_generations if library.has("builds for other GPUs") else ()
    if generations and gpu.compute_capability not in generations:
        where = f"run it on a GPU of compute capability {join_or(generations)}"
        hint = f"{where}, or build the engine with backend: tensorrt for this one"
        raise Unavailable(f"TensorRT-RTX does not run on {_title(gpu)}", hint)
    return gpu


def _title(gpu: Gpu) -> str:
    return f"the {gpu.name} of this machine (compute capability {gpu.compute_capability})"


def _where(precision: str) -> str:
    first = ".".join(map(str, _FIRST_WITH[precision]))
    return f"{precision} needs a GPU of compute capability {first} or later"


@dataclass(frozen=True)
class TensorRtBackend:
    """The functions of ``backends.interface.Backend`` as methods."""

    library: TensorRTLibrary

    def prepare(self, options: Options) -> None:
        """Check the engine's fields against the library and this machine."""
        check_fields(self.library, options)
        check_builder(self.library, options)

    def describe(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> Figures:
        """Read the facts of an engine; {} without a suitable GPU."""
        try:
            session = self.load(engine, options, operators)
        except Unavailable:
            return {}
        try:
            facts = session.describe(options["precision"])
        finally:
            session.close()
        check_precision(facts, options, _PRECISION_HINT)
        return facts

    def load(
        self, engine: Path, options: Options, operators: tuple[OperatorUse, ...] = ()
    ) -> TensorRtSession:
        """Load an engine on the first GPU."""
        check_runner(self.library, options)
        load_plugins(self.library, operators)  # an engine contains only their fields
        kernels = None
        if options.get("runtime_cache"):
            folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
            kernels = folder / "buildsys" / "kernels" / f"{sha256_of(engine)}.cache"
        host_code = bool(options.get("version_compatible"))
        session = TensorRtSession.load(self.library, engine, kernels, host_code=host_code)
        # the host code of a plugin would not run again
        session.cuda_graphs = bool(options.get("cuda_graphs")) and not operators
        return session

    def device(self, options: Options) -> Figures:
        """Describe the first GPU and the driver, or the reason for none."""
        return gpu_facts()
