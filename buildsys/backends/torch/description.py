"""Facts of PyTorch as a backend, known without importing it."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.system.backend_registry import (
    Ability,
    BackendDescription,
    Gpus,
    Machine,
    Reason,
    Record,
)

# modes: a package for the CPU, code for a GPU, PyTorch's own kernels on a GPU
AOT_INDUCTOR, COMPILE, CUDA_GRAPH = "aot_inductor", "compile", "cuda_graph"


class _Torch(BackendDescription):
    """PyTorch."""

    def ability(
        self, version: str, facts: Mapping[str, Any], gpus: Gpus, *, cuda: bool = False
    ) -> Ability:
        return Ability(
            f"builds and runs on the CPU{' and on the GPU' if gpus.capabilities else ''}"
        )

    def runs_on_gpu(self, options: Mapping[str, Any]) -> bool:
        return bool(options.get("mode", AOT_INDUCTOR) != AOT_INDUCTOR)

    def uses_gpu_clock(self, options: Mapping[str, Any]) -> bool:
        return self.runs_on_gpu(options)

    def exact_float32(self, options: Mapping[str, Any]) -> str:
        is_rounded = options["precision"] == "fp32" and options.get("tf32")
        return "tf32: false" if is_rounded and self.runs_on_gpu(options) else ""

    def not_reproducible(self, options: Mapping[str, Any]) -> str:
        if options.get("mode") == CUDA_GRAPH:
            return ""
        return "compiled programs have paths of their build in them"

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        from buildsys.system import compatibility as rules  # slow

        built = rules.built_version(record)
        if here and built and rules.version_numbers(here)[:2] != rules.version_numbers(built)[:2]:
            problem = (
                f"it was built with {self.title} {built}, but {here} is installed: a compiled"
                " package only runs with its own version"
            )
            yield Reason("version", problem, rules.install_command(record))
        if self.runs_on_gpu(record.map("settings")):
            yield from _gpu_reasons(record, machine)
            return
        recorded = record.map("built_with").get("instructions")
        missing = (
            {*map(str, recorded)} - {*machine.instructions} if isinstance(recorded, list) else set()
        )
        if missing:
            problem = f"it was compiled for processors with {', '.join(sorted(missing))}"
            yield Reason("processor", problem, "build it on this kind of processor")


def _gpu_reasons(record: Record, machine: Machine) -> Iterator[Reason]:
    own = str(record.map("built_with").get("compute_capability") or "")
    gpu = next(iter(machine.gpus), None)
    if gpu is None:
        problem = f"it needs an NVIDIA GPU, but {machine.why_no_gpu()}"
        yield Reason("gpu", problem, f"run it on a GPU of compute capability {own}")
    elif own != gpu["compute_capability"]:
        problem = (
            f"it was built for compute capability {own}, and this {gpu['name']} has"
            f" {gpu['compute_capability']}"
        )
        yield Reason("gpu", problem, "build it on this kind of GPU")


DESCRIPTION = _Torch(
    title="PyTorch",
    libraries={"torch": "torch"},
    install="pip install torch",
    packages="torch",
    engine_file="engine.pt2",
    data_file="engine.weights",
    takes_float32=True,
    takes_program=True,
    operator_kinds=(),
    same_platform=True,
    environment=("torch",),
)
