"""Facts of ONNX Runtime as a backend, known without its library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from buildsys.backends.onnxruntime.execution_providers import compiles, known_providers
from buildsys.system.backend_registry import Ability, BackendDescription, Gpus


class _OnnxRuntime(BackendDescription):
    """ONNX Runtime."""

    def ability(
        self,
        version: str,  # noqa: ARG002
        facts: Mapping[str, Any],
        gpus: Gpus,
        *,
        cuda: bool = False,
    ) -> Ability:
        """Return the abilities of the CPU and CUDA providers."""
        has_cuda = "CUDAExecutionProvider" in (facts.get("providers") or ())
        if cuda and not has_cuda:
            remedy = "pip install onnxruntime-gpu"
            return Ability(problem="this onnxruntime has no CUDA provider", remedy=remedy)
        if cuda and not gpus.capabilities:
            problem = f"the CUDA provider needs an NVIDIA GPU, and {gpus.problem}"
            remedy = "run it on a machine with an NVIDIA GPU"
            return Ability(problem=problem, remedy=remedy, elsewhere=True)
        on_gpu = " and on the GPU" if has_cuda and gpus.capabilities else ""
        return Ability(f"builds and runs on the CPU{on_gpu}")

    def runs_on_gpu(self, options: Mapping[str, Any]) -> bool:
        """Check for providers of NVIDIA GPUs."""
        return any(provider.needs_nvidia for provider in known_providers(options))

    def run_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """List the libraries and plugins of the providers."""
        names = [
            library
            for provider in known_providers(options)
            for library in (provider.plugin, *provider.libraries)
        ]
        return tuple(dict.fromkeys(filter(None, names)))

    def one_of(self, options: Mapping[str, Any]) -> tuple[tuple[tuple[str, ...], str], ...]:
        """List the distributions that have each provider."""
        return tuple(
            (provider.distributions, provider.install)
            for provider in known_providers(options)
            if provider.distributions
        )

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
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


DESCRIPTION = _OnnxRuntime(
    title="ONNX Runtime",
    libraries={"onnxruntime": "onnxruntime"},
    install="pip install onnxruntime",
    packages="onnxruntime onnx",
    engine_file="engine.onnx",
    takes_ranges=False,  # the shapes are in the graph
    environment=("onnxruntime",),
    operator_kinds=("function", "library"),
    build_seconds=1.0,
)
