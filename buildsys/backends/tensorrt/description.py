"""Facts of TensorRT as a backend, known without its library."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from buildsys.system.backend_registry import (
    Ability,
    BackendDescription,
    Gpus,
    Machine,
    Reason,
    Record,
    uses_tf32,
)

CUDA = {"cuda.bindings.driver": "cuda-bindings"}


@dataclass(frozen=True)
class TensorRt(BackendDescription):
    """TensorRT or TensorRT-RTX."""

    takes_definition: bool = True
    gpu_generations: tuple[str, ...] = ()  # compute capabilities; default: all

    def ability(
        self, version: str, facts: Mapping[str, Any], gpus: Gpus, *, cuda: bool = False
    ) -> Ability:
        """Return the abilities on the GPUs here."""
        name = f"{self.distribution} {version}"
        if self.needs_gpu_library and not gpus.capabilities:
            problem = f"{name} builds on the GPU that will run the engine, and {gpus.problem}"
            remedy = "run it on a machine with an NVIDIA GPU"
            return Ability(problem=problem, remedy=remedy)
        if not facts.get("builder"):
            why = facts.get("builder_problem") or "cannot create a builder"
            remedy = "nvidia-smi" if self.needs_gpu_library else self.install
            return Ability(problem=f"{name} is installed, but unusable: {why}", remedy=remedy)
        here = dict.fromkeys(gpus.capabilities)
        runs = [name for name in here if not self.gpu_generations or name in self.gpu_generations]
        if runs:
            return Ability(f"builds and runs here, compute capability {' and '.join(runs)}")
        why = gpus.problem or f"the GPU here has {' and '.join(here)}; backend: tensorrt is for it"
        supported = ", ".join(self.gpu_generations)
        return Ability(f"builds here for compute capabilities {supported}; cannot run here: {why}")

    def runs_on_gpu(self, options: Mapping[str, Any]) -> bool:
        """Return True."""
        return True

    def run_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return none: the bindings of CUDA compute nothing."""
        return ()

    def not_reproducible(self, options: Mapping[str, Any]) -> str:
        """Return the reason for other bytes in every build."""
        return "TensorRT engines are not reproducible"

    def exact_float32(self, options: Mapping[str, Any]) -> str:
        """Return the YAML that turns TF32 off, "" if it is unused."""
        if options["precision"] != "fp32" or not uses_tf32(options):
            return ""
        return "tf32: false" if "tf32" in options else "flags: {tf32: false}"

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        """Yield reasons by version, GPU and driver."""
        from buildsys.backends.tensorrt import compatibility  # slow

        return compatibility.reasons(record, here, machine)

    def notes(self, record: Record) -> Iterator[str]:
        """Yield facts worth knowing before an engine runs here."""
        from buildsys.backends.tensorrt import compatibility  # slow

        return iter(()) if self.builds_without_gpu else compatibility.notes(record)


DESCRIPTION = TensorRt(
    title="TensorRT",
    libraries={"tensorrt": "tensorrt", **CUDA},
    install="pip install 'buildsys[tensorrt]'",
    packages="tensorrt cuda-bindings onnx",
    operator_kinds=("function", "plugin"),
    needs_gpu_library=True,
    calibrators=("entropy", "minmax"),
    keeps_timings=True,
    newest_graphs={"8": (17, 8)},  # its parser misreads some newer nodes without an error
    same_platform=True,
)
