"""Facts of ONNX Runtime as a backend, known without its library."""

from collections.abc import Iterator, Mapping
from typing import Any

from buildsys.backends.onnxruntime.execution_providers import CPU, compiles, known_providers
from buildsys.system.backend_registry import (
    Ability,
    BackendDescription,
    Gpus,
    Machine,
    Reason,
    Record,
)

_LAYOUTS = ("avx", "avx2", "avx512f")  # weights are blocked in channels by their width


class _OnnxRuntime(BackendDescription):
    """ONNX Runtime."""

    def ability(
        self, version: str, facts: Mapping[str, Any], gpus: Gpus, *, cuda: bool = False
    ) -> Ability:
        has_cuda = "CUDAExecutionProvider" in (facts.get("providers") or ())
        if cuda and not has_cuda:
            remedy = "pip install onnxruntime-gpu"
            return Ability(problem="this onnxruntime has no CUDA provider", remedy=remedy)
        if cuda and not gpus.capabilities:
            problem = f"the CUDA provider needs an NVIDIA GPU, and {gpus.problem}"
            remedy = "run it on a machine with an NVIDIA GPU"
            return Ability(problem=problem, remedy=remedy)
        on_gpu = " and on the GPU" if has_cuda and gpus.capabilities else ""
        return Ability(f"builds and runs on the CPU{on_gpu}")

    def runs_on_gpu(self, options: Mapping[str, Any]) -> bool:
        return any(provider.needs_nvidia for provider in known_providers(options))

    def run_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        names = [
            library
            for provider in known_providers(options)
            for library in (provider.plugin, *provider.libraries)
        ]
        return tuple(dict.fromkeys(filter(None, names)))

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the library that reads the figures of an engine."""
        return ("onnx",)

    def auto_precisions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List int8 first on a CPU: it computes fp16 in float32."""
        quantized, half = ("int8", "fp8"), ("fp16", "bf16")
        return (*half, *quantized) if self.runs_on_gpu(options) else (*quantized, *half)

    def counts_cores(self, options: Mapping[str, Any]) -> bool:
        """Check for 0 threads: as many as there are cores."""
        return bool(options.get("intra_op_threads") == 0)

    def not_reproducible(self, options: Mapping[str, Any]) -> str:
        """Return the reason for other bytes or another order of nodes.

        The names of EPContext nodes contain a hash of the graph's path. The layout pass iterates
        over a hash table of addresses: 2 of 8 builds of one graph had their nodes in another order.
        """
        if options["ep_context"]:
            return "what the providers compile is not reproducible"
        reordered = options["graph_optimization_level"] == "all" and not compiles(options)
        return "ONNX Runtime's layout pass orders nodes by address" if reordered else ""

    def reasons(self, record: Record, here: str, machine: Machine) -> Iterator[Reason]:
        from buildsys.system.compatibility import older_library  # slow

        yield from older_library(
            record, here, "an older version may not support operators that the newer one added"
        )
        if self.runs_on_gpu(record.map("settings")) and not machine.gpus:
            problem = f"it needs an NVIDIA GPU, but {machine.why_no_gpu()}"
            yield Reason("gpu", problem, "run it on an NVIDIA GPU")
        available = machine.onnxruntime_providers() if here else ()
        for provider in known_providers(record.map("settings")):
            has_plugin = provider.plugin and machine.package_version(provider.plugin)
            if here and provider.title not in available and not has_plugin:
                problem = f"the installed onnxruntime does not have its {provider.name} provider"
                yield Reason("library", problem, provider.install)
        if record.map("settings").get("ep_context"):
            yield from _context_reasons(record, machine)
        if all(provider.name == CPU for provider in known_providers(record.map("settings"))):
            yield from _check_processor(record, machine)


def _context_reasons(record: Record, machine: Machine) -> Iterator[Reason]:
    """Yield providers of another version than that whose compiled nodes the engine contains."""
    from buildsys.system.compatibility import version_numbers  # slow

    for provider in known_providers(record.map("settings")):
        library = provider.context_library
        built = str(record.map("provider_libraries").get(library) or "")
        here = machine.package_version(library) if built else ""
        if built and not here:  # it may be the system's
            continue
        is_newer = version_numbers(here) > version_numbers(built)
        if here != built and not (provider.reads_older_contexts and is_newer):
            problem = f"its nodes were compiled by {library} {built}, but {here} is installed"
            newer = " or newer" if provider.reads_older_contexts else ", or build it here"
            yield Reason("version", problem, f"pip install '{library}=={built}'{newer}")


def _check_processor(record: Record, machine: Machine) -> Iterator[Reason]:
    from buildsys.system.cpu import overflows_in_int8

    here, recorded = machine.instructions, record.map("built_with").get("instructions")
    names = [str(name) for name in recorded] if isinstance(recorded, list) else []
    shares = record.map("precision_shares").get("weights")
    if (
        names
        and overflows_in_int8(here)
        and not overflows_in_int8(names)
        and isinstance(shares, Mapping)
        and "int8" in shares
    ):
        problem = (
            "it computes in int8 and was built on a processor with VNNI instructions; on this one,"
            " which has none, its products would overflow"
        )
        yield Reason("processor", problem, "build it here")
    if record.map("settings").get("graph_optimization_level", "all") != "all":
        return
    missing = [name for name in names if name in _LAYOUTS and name not in here]
    if missing:
        problem = (
            f"its weights are laid out for {', '.join(missing)},"
            " which this processor does not support"
        )
        remedy = "build it here, or with graph_optimization_level: extended"
        yield Reason("processor", problem, remedy)


DESCRIPTION = _OnnxRuntime(
    title="ONNX Runtime",
    libraries={"onnxruntime": "onnxruntime"},
    install="pip install onnxruntime",
    packages="onnxruntime onnx",
    engine_file="engine.onnx",
    takes_ranges=False,  # the shapes are in the graph
    environment=("onnxruntime",),
    operator_kinds=("function", "library"),
)
