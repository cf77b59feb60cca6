"""Checks of backends and toolchains on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from buildsys.cli.commands.doctor.machine import MISSING, OK, Check, Gpus
from buildsys.manifest.schema.engines import ComputeCapability
from buildsys.report.formatting import plural
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.interpreters.probe import Library, check_libraries
from buildsys.system.interpreters.toolchain import Toolchain

# backend -> command that installs its library here, package for a toolchain (a test compares
# them with the registry of backends)
INSTALL = {
    "onnxruntime": ("pip install onnxruntime", "onnxruntime"),
    "tensorrt": ("pip install 'buildsys[tensorrt]'", "tensorrt cuda-bindings"),
    "tensorrt_rtx": ("pip install 'buildsys[rtx]'", "tensorrt-rtx cuda-bindings"),
}
_CUDA = "CUDAExecutionProvider"
_RTX_CAPABILITIES = tuple(name for name in get_args(ComputeCapability) if name != "current")


@dataclass(frozen=True)
class Ability:
    """Abilities of a backend on this machine, or its problem."""

    text: str = ""
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Environment:
    """An interpreter and its libraries."""

    toolchain: Toolchain | None  # None: our own interpreter
    problem: str = ""
    remedy: str = ""
    python: str = ""
    libraries: Mapping[str, Library] = field(default_factory=dict)
    has_cuda: bool = True  # cuda-bindings, which our own interpreter requires

    def ability(self, backend: str, gpus: Gpus, *, cuda: bool = False) -> Ability:
        """Return the abilities of a backend; with ``cuda`` only those on the GPU."""
        if self.problem:
            return Ability(problem=self.problem, remedy=self.remedy)
        library = self.libraries[backend]
        if library.is_usable and self.toolchain and not self.has_cuda and backend != "onnxruntime":
            remedy = f"{self.toolchain.pip} cuda-bindings"
            return Ability(problem=f"{backend} needs cuda-bindings", remedy=remedy)
        if library.is_usable:
            return _ability(library, gpus, cuda=cuda)
        problem = "is not installed"
        install, package = INSTALL[backend]
        again = ""
        if not library.missing:
            problem, again = f"cannot be imported: {library.problem}", "--force-reinstall "
        remedy = install.replace("install ", f"install {again}")
        if self.toolchain is not None:
            remedy = f"{self.toolchain.pip} {again}{package}"
        return Ability(problem=f"{backend} {problem}", remedy=remedy)


def check_environment(toolchain: Toolchain, limit_s: float) -> Environment:
    """Probe the interpreter of a toolchain and its libraries."""
    found = check_interpreter(toolchain)
    if found.interpreter is None or found.problem:
        return Environment(toolchain, found.problem, found.hint)
    environment = toolchain.environment(os.environ)
    names = ("numpy", *INSTALL)
    libraries = check_libraries(toolchain.python, names, environment, limit_s)
    python = f"{found.interpreter.implementation} {found.interpreter.version}, {toolchain.python}"
    numpy = libraries["numpy"]
    if numpy.is_usable:
        has_cuda = found.interpreter.finds("cuda")
        return Environment(toolchain, python=python, libraries=libraries, has_cuda=has_cuda)
    why = (
        "has no numpy" if numpy.missing else f"has a numpy that cannot be imported: {numpy.problem}"
    )
    problem, remedy = f"the toolchain {toolchain.name} {why}", f"{toolchain.pip} numpy"
    return Environment(toolchain, problem, remedy, python, libraries)


def check_backends(
    own: Environment, gpus: Gpus, users: Mapping[str, Sequence[str]]
) -> Iterator[Check]:
    """Yield the abilities of each backend in our interpreter."""
    for backend in INSTALL:
        ability, library = own.ability(backend, gpus), own.libraries[backend]
        engines = list(users.get(backend, ()))
        facts = {"version": library.version, **(library.facts or {}), "engines": engines}
        if ability.problem:
            needed = f"needed by {plural(len(engines), 'engine')} of this project"
            text = (
                f"{ability.problem}; {needed if engines else 'no engine of this project uses it'}"
            )
            yield Check("backend", backend, MISSING, text, ability.remedy, facts)
        else:
            yield Check("backend", backend, OK, f"{library.version}: {ability.text}", facts=facts)


def check_toolchain(found: Environment, gpus: Gpus, users: Mapping[str, Sequence[str]]) -> Check:
    """Return the libraries of a toolchain and the abilities of its backends."""
    assert found.toolchain is not None
    name, libraries = found.toolchain.name, found.libraries
    engines = [engine for names in users.values() for engine in names]
    versions = {one.name: one.version for one in libraries.values() if one.is_usable}
    facts = {"python": str(found.toolchain.python), "versions": versions, "engines": engines}
    if found.problem:
        return Check("toolchain", name, MISSING, found.problem, found.remedy, facts)
    backends = list(users) or [backend for backend in INSTALL if libraries[backend].is_usable]
    abilities = [(backend, found.ability(backend, gpus)) for backend in backends]
    failed = [ability for _, ability in abilities if ability.problem]
    if not backends:
        problem, remedy = "no backend library is installed", f"{found.toolchain.pip} tensorrt"
        failed = [Ability(problem=problem, remedy=remedy)]
    parts = [
        f"{found.python}: " + ", ".join(f"{one} {version}" for one, version in versions.items())
    ]
    parts += [f"{backend} {ability.text}" for backend, ability in abilities if ability.text]
    parts += [ability.problem for ability in failed]
    remedy = next((ability.remedy for ability in failed if ability.remedy), "")
    return Check("toolchain", name, MISSING if failed else OK, "; ".join(parts), remedy, facts)


def _ability(library: Library, gpus: Gpus, *, cuda: bool) -> Ability:
    """Return the abilities of an importable backend library."""
    name, facts = f"{library.name} {library.version}", library.facts or {}
    if library.name == "onnxruntime":
        has_cuda = _CUDA in (facts.get("providers") or ())
        if cuda and not has_cuda:
            remedy = "pip install onnxruntime-gpu"
            return Ability(problem="this onnxruntime has no CUDA provider", remedy=remedy)
        if cuda and not gpus.capabilities:
            problem = f"the CUDA provider needs an NVIDIA GPU, and {gpus.problem}"
            return Ability(problem=problem, remedy="run it on a machine with a GPU")
        on_gpu = " and on the GPU" if has_cuda and gpus.capabilities else ""
        return Ability(f"builds and runs on the CPU{on_gpu}")
    if library.name == "tensorrt" and not gpus.capabilities:
        problem = f"{name} builds on the GPU that will run the engine, and {gpus.problem}"
        return Ability(problem=problem, remedy="run it on a machine with an NVIDIA GPU")
    here = " and ".join(dict.fromkeys(gpus.capabilities))
    if not facts.get("builder"):
        why = facts.get("builder_problem") or "cannot create a builder"
        remedy = "nvidia-smi" if library.name == "tensorrt" else INSTALL[library.name][0]
        return Ability(problem=f"{name} is installed, but unusable: {why}", remedy=remedy)
    if library.name == "tensorrt":
        return Ability(f"builds and runs here, compute capability {here}")
    runs = [one for one in dict.fromkeys(gpus.capabilities) if one in _RTX_CAPABILITIES]
    if runs:
        return Ability(f"builds and runs here, compute capability {' and '.join(runs)}")
    why = gpus.problem or f"the GPU here has {here}"
    supported = ", ".join(_RTX_CAPABILITIES)
    return Ability(f"builds here for compute capabilities {supported}; cannot run here: {why}")
