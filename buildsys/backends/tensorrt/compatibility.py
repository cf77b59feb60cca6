"""Rules for running engines of TensorRT and TensorRT-RTX.

Source: TensorRT documentation, "Engine Compatibility" and "Support Matrix" (11.4); TensorRT-RTX
documentation, "Engine Compatibility" and "CPU-Only AOT and TensorRT-RTX Engines".
"""

from collections.abc import Iterator, Sequence

from buildsys.system.backend_registry import Machine, Reason, Record, describe_backend
from buildsys.system.compatibility import (
    built_version,
    install_command,
    version_numbers,
)

# major versions of a build and of the only later runtimes that take its version-compatible engines
_LATER_MAJORS = {(8, 10), (10, 11)}
_AMPERE = (8, 0)
_RELEASE = 3  # numbers of a version that identify an engine format


def reasons(record: Record, here: str, machine: Machine) -> Iterator[Reason]:
    """Yield reasons by the version ``here`` ("": not installed), GPU and driver."""
    if rule := _version_rule(record, here):
        title, built = describe_backend(record.backend).title, built_version(record)
        problem = f"it was built with {title} {built}, but {here} is installed: {rule}"
        remedy = f"{install_command(record)}, or build it with the installed version"
        yield Reason("version", problem, remedy)
    portability, built_with = record.map("portability"), record.map("built_with")
    own = str(built_with.get("compute_capability") or "")
    listed = portability.get("compute_capabilities")
    names = listed if listed and isinstance(listed, list) else [own] if own else []
    suitable = [own if name == "current" else str(name) for name in names]
    runs_on_later = portability.get("hardware_compatibility") == "ampere_plus"
    built_for = "8.0 or later" if runs_on_later else join_or(suitable)
    gpu = next(iter(machine.gpus), None)
    if gpu is None:
        target = f"a GPU of compute capability {built_for}" if built_for else "an NVIDIA GPU"
        problem = f"it needs an NVIDIA GPU, but {machine.why_no_gpu()}"
        yield Reason("gpu", problem, f"run it on {target}")
        return
    description = describe_backend(record.backend)
    own_cuda = machine.cuda_of_library(description.module)
    needed = version_numbers(own_cuda or str(built_with.get("cuda_runtime") or ""))
    supported = version_numbers(str(gpu.get("cuda_driver") or ""))
    if needed and supported and supported[0] < needed[0]:
        problem = (
            f"the NVIDIA driver {gpu.get('driver')} is too old: it supports CUDA up to"
            f" {gpu['cuda_driver']}, but {description.title} here needs CUDA {needed[0]}"
        )
        yield Reason("driver", problem, f"install a driver that supports CUDA {needed[0]}")
    capability = gpu["compute_capability"]
    fits = version_numbers(capability) >= _AMPERE if runs_on_later else capability in suitable
    if built_for and not fits:
        problem = f"it was built for compute capability {built_for}"
        remedy = f"add '{capability}' to its compute_capabilities and build it again"
        if record.backend == "tensorrt":
            problem = f"it was built on {built_with.get('gpu')} for compute capability {built_for}"
            remedy = (
                "build it on a GPU like this one, or with hardware_compatibility: ampere_plus if"
                " both have 8.0 or later"
            )
        problem = f"{problem}, but {gpu['name']} here has {capability}"
        yield Reason("compute capability", problem, remedy)


def notes(record: Record) -> Iterator[str]:
    """Yield facts worth knowing before an engine runs here."""
    if record.map("portability").get("version_compatible"):
        yield (
            "set runtime.engine_host_code_allowed = True before deserializing:"
            " it contains its own runtime"
        )
    if record.map("portability").get("exclude_lean_runtime"):
        library = f"{describe_backend(record.backend).title} {built_version(record)}"
        yield f"it does not contain its lean runtime: load that of {library} first"


def _version_rule(record: Record, here: str) -> str:
    """Return the rule that another version violates, "" if none does or it is unknown."""
    built, installed = version_numbers(built_version(record)), version_numbers(here)
    if not built or not installed:
        return ""
    if not record.map("portability").get("version_compatible"):
        shared = max(_RELEASE, min(len(built), len(installed)))
        is_same = built[:shared] == installed[:shared]
        return "" if is_same else "such an engine only runs with its own version"
    is_later = built[0] == installed[0] and installed >= built[: len(installed)]
    if is_later or (built[0], installed[0]) in _LATER_MAJORS:
        return ""
    return "a version-compatible engine only runs with later versions of this and the next major"


def join_or(names: Sequence[str]) -> str:
    """Join names as in ``a, b or c``."""
    return " or ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)
