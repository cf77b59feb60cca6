"""What ``doit doctor`` tells of toolchains and backends: what is there, what it can build and run here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from buildsys.cli.doctor.finding import BROKEN, MISSING, OK, Finding, counted
from buildsys.cli.doctor.gpus_and_folders import Gpus
from buildsys.manifest.schema.tensorrt import ComputeCapability
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.interpreters.probe import Library, check_libraries
from buildsys.system.interpreters.toolchain import Toolchain

# backend -> what installs its library here, and into a toolchain (a test compares them with the registry of backends)
INSTALL = {
    "onnxruntime": ("pip install onnxruntime", "onnxruntime"),
    "tensorrt": ("pip install 'buildsys[tensorrt]'", "tensorrt cuda-bindings"),
    "tensorrt_rtx": ("pip install 'buildsys[rtx]'", "tensorrt-rtx cuda-bindings"),
}
_CUDA = "CUDAExecutionProvider"
_RTX_CAPABILITIES = tuple(name for name in get_args(ComputeCapability) if name != "current")


@dataclass(frozen=True)
class Ability:
    """What a backend can do on this machine, in words; ``problem`` says why it cannot build."""

    text: str
    problem: str = ""
    mend: str = ""


@dataclass(frozen=True)
class Place:
    """An interpreter and what became of asking it."""

    toolchain: Toolchain | None  # None: our own
    problem: str = ""
    mend: str = ""
    python: str = ""
    modules: Mapping[str, Library] | None = None

    def ability(self, backend: str, gpus: Gpus, *, cuda: bool = False) -> Ability:
        """Return what a backend can do here; with ``cuda`` it is to use the GPU."""
        if self.problem:
            return Ability("", self.problem, self.mend)
        module = (self.modules or {})[backend]
        if not module.is_usable:
            told = "is not installed" if module.missing else f"does not load: {module.problem}"
            return Ability(
                "", f"{backend} {told}", self._install(backend, again=not module.missing)
            )
        return _ABILITIES[backend](module, gpus, cuda)

    def _install(self, backend: str, *, again: bool) -> str:
        ours, package = INSTALL[backend]
        if self.toolchain is None:
            return ours.replace("install", "install --force-reinstall") if again else ours
        return f"{self.toolchain.pip} {'--force-reinstall ' if again else ''}{package}"


def ask_toolchain(toolchain: Toolchain, within_s: float) -> Place:
    """Return what a toolchain has."""
    found = check_interpreter(toolchain)
    if found.interpreter is None or found.problem:
        return Place(toolchain, found.problem, found.hint)
    environment = toolchain.environment(os.environ)
    modules = check_libraries(toolchain.python, ("numpy", *INSTALL), environment, within_s)
    python = f"{found.interpreter.implementation} {found.interpreter.version}, {toolchain.python}"
    numpy = modules["numpy"]
    if not numpy.is_usable:
        told = (
            "has no numpy" if numpy.missing else f"has a numpy that does not load: {numpy.problem}"
        )
        problem = f"the toolchain {toolchain.name} {told}"
        return Place(toolchain, problem, f"{toolchain.pip} numpy", python, modules)
    return Place(toolchain, python=python, modules=modules)


def tell_backends(own: Place, gpus: Gpus, users: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Yield what each backend can do in our own interpreter; ``users`` are the engines of this project that have it."""
    for backend in INSTALL:
        ability = own.ability(backend, gpus)
        module = (own.modules or {})[backend]
        engines = users.get(backend, ())
        needed = (
            f"needed by {counted(len(engines), 'engine')} here"
            if engines
            else "no engine of this project has it"
        )
        facts = {"version": module.version, **(module.facts or {}), "engines": list(engines)}
        if ability.problem:
            yield Finding(
                "backend", backend, MISSING, f"{ability.problem}; {needed}", ability.mend, facts
            )
        else:
            yield Finding("backend", backend, OK, f"{module.version}: {ability.text}", facts=facts)


def tell_toolchain(place: Place, gpus: Gpus, users: Mapping[str, Sequence[str]]) -> Finding:
    """Return what a toolchain has, and what the backends of its engines can do in it."""
    assert place.toolchain is not None
    name, modules = place.toolchain.name, place.modules or {}
    engines = [engine for named in users.values() for engine in named]
    versions = {module.name: module.version for module in modules.values() if module.is_usable}
    facts = {"python": str(place.toolchain.python), "versions": versions, "engines": engines}
    if place.problem:
        return Finding("toolchain", name, MISSING, place.problem, place.mend, facts)
    wanted = list(users) or [backend for backend in INSTALL if modules[backend].is_usable]
    abilities = {backend: place.ability(backend, gpus) for backend in wanted}
    lacking = [ability for ability in abilities.values() if ability.problem]
    if not wanted:
        lacking = [
            Ability("", "it has the library of no backend", f"{place.toolchain.pip} tensorrt")
        ]
    has = ", ".join(f"{module} {version}" for module, version in versions.items())
    told = "; ".join(
        f"{backend} {ability.text}" for backend, ability in abilities.items() if not ability.problem
    )
    text = "; ".join(
        part for part in (f"{place.python}: {has}", told, *(one.problem for one in lacking)) if part
    )
    state, mend = (
        (MISSING, next((one.mend for one in lacking if one.mend), "")) if lacking else (OK, "")
    )
    return Finding("toolchain", name, state, text, mend, facts)


def tell_required(engine: str, ability: Ability) -> Finding:
    """Return that an engine cannot be built which has to be."""
    text = f"is required, and cannot be built here: {ability.problem}"
    return Finding("engine", engine, BROKEN, text, ability.mend)


def _onnxruntime(module: Library, gpus: Gpus, cuda: bool) -> Ability:
    has_cuda = _CUDA in ((module.facts or {}).get("providers") or ())
    if cuda and not has_cuda:
        return Ability("", "this onnxruntime has no CUDA provider", "pip install onnxruntime-gpu")
    if cuda and not gpus.capabilities:
        return Ability(
            "",
            f"the CUDA provider needs an NVIDIA GPU, and {gpus.missing}",
            "run it on a machine with a GPU",
        )
    on_gpu = ", and on the GPU" if has_cuda and gpus.capabilities else ""
    return Ability(f"builds and runs on the CPU{on_gpu}")


def _tensorrt(module: Library, gpus: Gpus, cuda: bool) -> Ability:  # noqa: ARG001 (it has nothing but CUDA)
    if not gpus.capabilities:
        where = "run it on a machine with an NVIDIA GPU"
        return Ability(
            "",
            f"tensorrt {module.version} builds on the GPU that its engines are for, and {gpus.missing}",
            where,
        )
    facts = module.facts or {}
    if not facts.get("builder"):
        why = facts.get("builder_problem") or "it makes no builder"
        return Ability(
            "", f"tensorrt {module.version} loads, but cannot be used: {why}", "nvidia-smi"
        )
    return Ability(f"builds and runs here, {gpus.text}")


def _tensorrt_rtx(module: Library, gpus: Gpus, cuda: bool) -> Ability:  # noqa: ARG001 (the same)
    if not (module.facts or {}).get("builder"):
        return Ability(
            "",
            f"tensorrt_rtx {module.version} loads, but makes no builder",
            INSTALL["tensorrt_rtx"][0],
        )
    runs = [capability for capability in gpus.capabilities if capability in _RTX_CAPABILITIES]
    every = ", ".join(_RTX_CAPABILITIES)
    if runs:
        return Ability(
            f"builds and runs here, compute capability {' and '.join(dict.fromkeys(runs))}"
        )
    why = gpus.missing or f"the GPU here has {' and '.join(dict.fromkeys(gpus.capabilities))}"
    return Ability(f"builds here, for compute capabilities {every}; runs on such a GPU, and {why}")


_ABILITIES = {"onnxruntime": _onnxruntime, "tensorrt": _tensorrt, "tensorrt_rtx": _tensorrt_rtx}
