"""What this machine's GPU allows: to build an engine, and to run one."""

from __future__ import annotations

from buildsys.backends.cuda.gpus import Gpu, find_driver
from buildsys.backends.interface import Figures, Options
from buildsys.backends.tensorrt.enum_tables import CAPABILITIES, either
from buildsys.backends.tensorrt.library import Library
from buildsys.backends.tensorrt.version_adapter import builds_for_other_gpus
from buildsys.errors import StageError, Unavailable

_GPU_FLAGS = (
    "refit",
    "refit_identical",
    "strip_plan",
)  # TensorRT-RTX's builder asks the CUDA driver for them
_FIRST_WITH = {"fp16": (5, 3), "int8": (6, 1), "bf16": (8, 0), "fp8": (8, 9)}
_KNOWN = [capability for capability in CAPABILITIES.members if capability != "current"]


def check_builder(library: Library, options: Options) -> None:
    """Find fields that cannot be honoured on this machine, before anything is built.

    Raises: Unavailable: a GPU is needed and missing, or not one that the library knows.
    """
    precisions = [
        options["precision"],
        *(entry["precision"] for entry in options.get("layer_precisions", ())),
    ]
    if not builds_for_other_gpus(library):
        gpu = _first_gpu(
            f"{library.title} builds engines on the GPU that they are for",
            "build it on a machine with one",
        )
        for precision in precisions:
            if not computes_in(precision, gpu.compute_capability):
                here = (
                    f"the {gpu.name} of this machine (compute capability {gpu.compute_capability})"
                )
                raise Unavailable(
                    f"{here} does not compute in {precision}", _where_it_is(precision)
                )
        return
    lacking = [
        each
        for each in options["compute_capabilities"]
        if not computes_in(options["precision"], each)
    ]
    if lacking:
        text = (
            f"GPUs of compute capability {either(lacking)} do not compute in {options['precision']}"
        )
        raise StageError(
            text, f"take them out of compute_capabilities; {_where_it_is(options['precision'])}"
        )
    needing = [f"the builder flag {flag}" for flag in _GPU_FLAGS if options["flags"].get(flag)]
    needing += (
        ["the compute capability 'current'"] if "current" in options["compute_capabilities"] else []
    )
    if needing:
        _first_gpu(
            f"{' and '.join(needing)} can only be used on a machine with an NVIDIA GPU",
            "build it on a machine with an RTX GPU, or leave the field out",
        )
        _check_rtx_gpu()


def computes_in(precision: str, compute_capability: str) -> bool:
    """Tell whether GPUs of a compute capability have arithmetic of a precision.

    Source: TensorRT support matrix, "Hardware and Precision"; CUDA programming guide for 6.1, whose fp16 is no help.
    """
    if compute_capability == "current":
        return True
    here = tuple(int(part) for part in compute_capability.split("."))
    return here >= _FIRST_WITH.get(precision, (0,)) and (precision, here) != ("fp16", (6, 1))


def _where_it_is(precision: str) -> str:
    first = ".".join(map(str, _FIRST_WITH[precision]))
    return f"{precision} is for GPUs of compute capability {first} and later"


def check_runner(library: Library, options: Options) -> None:
    """Check that an engine built with ``options`` runs on the GPU of this machine, as far as can be told.

    Raises: Unavailable: no GPU, or not one of the generations that the engine is for.
    """
    if not builds_for_other_gpus(library):
        _first_gpu(
            f"{library.title} engines run on NVIDIA GPUs",
            "run it on a GPU like the one that built it",
        )
        return
    built_for = options["compute_capabilities"]
    named = [capability for capability in built_for if capability != "current"]
    driver = find_driver()
    if not driver.gpus:
        where = f"of compute capability {either(named)}" if named else "like the one that built it"
        raise Unavailable(
            f"no NVIDIA GPU can run the engine on this machine: {driver.missing}",
            f"run it on a GPU {where}",
        )
    gpu = _check_rtx_gpu()
    if gpu.compute_capability not in built_for and "current" not in built_for:
        raise Unavailable(
            f"the engine is built for compute capability {either(named)}, and the {gpu.name} of this machine"
            f" has {gpu.compute_capability}",
            f"add '{gpu.compute_capability}' to the engine's compute_capabilities",
        )


def device_facts() -> Figures:
    """Return the first GPU and the driver, or why there is none."""
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


def _first_gpu(purpose: str, hint: str) -> Gpu:
    driver = find_driver()
    if not driver.gpus:
        raise Unavailable(f"{purpose}, and here {driver.missing}", hint)
    return driver.gpus[0]


def _check_rtx_gpu() -> Gpu:
    where = f"run it on a GPU of compute capability {either(_KNOWN)}"
    gpu = _first_gpu("TensorRT-RTX engines run on NVIDIA GPUs", where)
    if gpu.compute_capability not in _KNOWN:
        here = f"the {gpu.name} of this machine (compute capability {gpu.compute_capability})"
        raise Unavailable(f"TensorRT-RTX does not run on {here}", where)
    return gpu
