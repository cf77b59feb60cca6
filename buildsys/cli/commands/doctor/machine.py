"""Checks of this machine: Python, libraries, backends, toolchains, GPUs and folders."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any

import buildsys
from buildsys.errors import StageError
from buildsys.execution.build_cache import store_folder
from buildsys.project.load import Project
from buildsys.report.formatting import plural, size
from buildsys.store.signatures import SigningKey
from buildsys.system.backend_registry import Ability, Gpus, backend_names, describe_backend
from buildsys.system.devices import device_facts
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.interpreters.probe import LIMIT_VARIABLE, Library, check_libraries
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.nvml import GpuError, read_details
from buildsys.system.printable import mask_secrets
from buildsys.system.signatures import key_name
from buildsys.system.versions import (
    ENVIRONMENT,
    environment_facts,
    installed_versions,
    module_path,
    normalized,
)

OK, MISSING, BROKEN = "ok", "missing", "broken"  # broken: something that the project needs
UNKNOWN = "unknown"  # a probe exceeded its time limit
# needed by every project
LIBRARIES = ("torch", "torchvision", "numpy", "onnx", "onnxscript", "onnxsim", "ml_dtypes")
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # dxg: WSL
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_DEVELOPMENT_EXTRAS = ("breadth", "dev", "docs", "mutation", "test")
_LOW_SPACE_BYTES = 2 << 30
_ON_A_GPU = "on a machine with an NVIDIA GPU"
_AGAIN = f"run it again when this machine is idle; {LIMIT_VARIABLE}=2min allows more time"


@dataclass(frozen=True)
class Finding:
    """State of one part of the installation, with a remedy."""

    kind: str  # python, project, library, toolchain, engine, packages, cpu …
    name: str
    state: str = OK
    text: str = ""
    remedy: str = ""  # a command where there is one
    facts: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: bool = False  # the remedy is for another machine

    @property
    def is_next_step(self) -> bool:
        """True for a remedy of a folder or of an engine's library, on this machine."""
        needed = self.kind == "folder" or bool(self.facts.get("engines"))
        return needed and bool(self.remedy) and not self.elsewhere

    def as_json(self) -> dict[str, Any]:
        """Convert the check to the field names of the JSON output."""
        fields = {
            "about": self.kind, "name": self.name, "state": self.state, "text": self.text,
            "mend": self.remedy,
        }  # fmt: skip
        return {**fields, "facts": dict(self.facts)} if self.facts else fields


def check_libraries_here(libraries: Mapping[str, Library]) -> Iterator[Finding]:
    """Yield the state of the libraries needed by every project."""
    requirements = {
        normalized(match[1]): line.strip()
        for line in declared_requirements().get("", ())
        if (match := _REQUIREMENT.match(line))
    }
    for name in LIBRARIES:
        library = libraries[name]
        if library.is_usable:
            yield Finding("library", name, OK, library.version, facts=dict(library.facts or {}))
            continue
        if library.timed_out:
            yield Finding("library", name, UNKNOWN, library.problem, _AGAIN)
            continue
        text = "is not installed" if library.missing else f"cannot be imported: {library.problem}"
        requirement = quote(requirements.get(normalized(name), name))
        again = "" if library.missing else "--force-reinstall "
        both = f"torch {requirement}" if again and name == "torchvision" else requirement
        remedy = f"{sys.executable} -m pip install {again}{both}"  # builds of one place
        facts = {"requirement": requirement} if library.missing else {}
        yield Finding("library", name, BROKEN, text, remedy, facts)


def check_extras(gpus: Gpus) -> Iterator[Finding]:
    """Yield the optional extras with their missing packages."""
    backends = [describe_backend(name) for name in backend_names()]
    only_with_gpu = {backend.install for backend in backends if backend.needs_gpu_library}
    installed = installed_versions(tuple(sys.path))
    for extra, requirements in declared_requirements().items():
        if extra in ("", *_DEVELOPMENT_EXTRAS):
            continue
        matches = (_REQUIREMENT.match(line) for line in requirements)
        names = [normalized(match[1]) for match in matches if match]
        versions = {name: installed[name] for name in names if name in installed}
        missing = [name for name in names if name not in installed]
        facts = {"installed": versions, "missing": missing}
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            text = f"{', '.join(missing)} {verb} not installed"
            remedy = f"pip install 'buildsys[{extra}]'"
            if remedy in only_with_gpu and not gpus.capabilities:
                remedy = f"{_ON_A_GPU}: {remedy}"
            yield Finding("extra", extra, MISSING, text, remedy, facts)
        else:
            text = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Finding("extra", extra, OK, text, facts=facts)


def declared_requirements() -> dict[str, list[str]]:
    """List extra -> requirements of the package or of a clone; those of all users under ""."""
    from importlib import metadata

    declared: dict[str, list[str]] = {}
    try:
        lines = metadata.requires("buildsys") or []
    except metadata.PackageNotFoundError:
        file = Path(buildsys.__file__).resolve().parent.parent / "pyproject.toml"
        with contextlib.suppress(ImportError, OSError, ValueError, KeyError):
            reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
            project = reader.loads(file.read_text(encoding="utf-8"))["project"]
            declared = {"": project["dependencies"], **project["optional-dependencies"]}
    else:
        for line in lines:
            extra = _EXTRA.search(line)
            name = extra[1] if extra else ""
            declared.setdefault(name, []).append(line.partition(";")[0])
    return declared


def check_gpus() -> tuple[Gpus, list[Finding]]:
    """Return the GPUs of this machine and their checks."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        details = read_details(visible)
        problem, remedy = "the NVIDIA driver finds no GPU", "nvidia-smi"
        if visible is not None:
            problem = f"CUDA_VISIBLE_DEVICES={visible} hides all GPUs"
            remedy = "unset CUDA_VISIBLE_DEVICES"
    except GpuError as error:
        details = []
        if any(Path(path).exists() for path in _DRIVER_FILES):
            problem, remedy = f"the NVIDIA driver does not answer ({error})", "nvidia-smi"
        else:
            problem = "this machine has no NVIDIA driver"
            remedy = "if there is a GPU, install its driver: sudo ubuntu-drivers install"
    if not details:
        return Gpus(problem=problem), [Finding("gpu", "none", MISSING, problem, remedy)]
    checks = []
    for gpu in details:
        mig = {"on": ", MIG on", "off": ", MIG off"}.get(gpu.mig, "")
        memory = "memory unknown"
        if gpu.memory_bytes:
            memory = f"{size(gpu.memory_bytes)} ({size(gpu.free_bytes)} free)"
        driver = f"driver {gpu.driver}, CUDA {gpu.cuda_driver}{mig}"
        text = f"compute capability {gpu.compute_capability}, {memory}, {driver}"
        checks.append(Finding("gpu", gpu.name, OK, text, facts=asdict(gpu)))
    return Gpus(tuple(gpu.compute_capability for gpu in details)), checks


def _state(ability: Ability) -> str:
    return UNKNOWN if ability.unknown else MISSING if ability.problem else OK


@dataclass(frozen=True)
class Environment:
    """An interpreter and its libraries."""

    toolchain: Toolchain | None  # None: our own interpreter
    problem: str = ""
    remedy: str = ""
    python: str = ""
    libraries: Mapping[str, Library] = field(default_factory=dict)
    has_cuda: bool = True  # cuda-bindings
    unknown: bool = False  # the problem is a time-out

    def ability(self, backend: str, gpus: Gpus, *, cuda: bool = False) -> Ability:
        """Return the abilities of a backend, with ``cuda`` on the GPU."""
        if self.problem:
            return Ability(problem=self.problem, remedy=self.remedy, unknown=self.unknown)
        description = describe_backend(backend)
        if description.problem:
            return Ability(problem=description.problem, remedy=description.install)
        library = self.libraries[description.module]
        if library.timed_out:
            return Ability(problem=f"{backend} {library.problem}", remedy=_AGAIN, unknown=True)
        if library.is_usable and not self.has_cuda and description.needs_cuda:
            remedy = "pip install 'buildsys[gpu]'"
            if self.toolchain:
                remedy = f"{self.toolchain.pip} cuda-bindings"
            return Ability(problem=f"{backend} needs cuda-bindings", remedy=remedy)
        if library.is_usable:
            return description.ability(library.version, library.facts or {}, gpus, cuda=cuda)
        problem = "is not installed"
        install, packages = description.install, description.packages
        again = ""
        if not library.missing:
            problem, again = f"cannot be imported: {library.problem}", "--force-reinstall "
        remedy = install.replace("install ", f"install {again}")
        if self.toolchain is not None:
            remedy = f"{self.toolchain.pip} {again}{packages}"
        if description.needs_gpu_library and library.missing and not gpus.capabilities:
            problem = f"{backend} {problem}, and {gpus.problem}"
            return Ability(problem=problem, remedy=f"{_ON_A_GPU}: {remedy}", elsewhere=True)
        return Ability(problem=f"{backend} {problem}", remedy=remedy)


def check_environment(toolchain: Toolchain, limit_s: float) -> Environment:
    """Probe the interpreter of a toolchain and its libraries."""
    probed = check_interpreter(toolchain)
    if probed.interpreter is None or probed.problem:
        return Environment(toolchain, probed.problem, probed.hint, unknown=probed.timed_out)
    environment = toolchain.environment(os.environ)
    names = ("numpy", *(describe_backend(name).module for name in backend_names()))
    libraries = check_libraries(toolchain.python, names, environment, limit_s)
    python = f"{probed.interpreter.implementation} {probed.interpreter.version}, {toolchain.python}"
    numpy = libraries["numpy"]
    if numpy.is_usable:
        has_cuda = probed.interpreter.finds("cuda")
        return Environment(toolchain, python=python, libraries=libraries, has_cuda=has_cuda)
    if numpy.timed_out:
        problem = f"numpy in the toolchain {toolchain.name} {numpy.problem}"
        return Environment(toolchain, problem, _AGAIN, python, libraries, unknown=True)
    why = (
        "has no numpy" if numpy.missing else f"has a numpy that cannot be imported: {numpy.problem}"
    )
    problem, remedy = f"the toolchain {toolchain.name} {why}", f"{toolchain.pip} numpy"
    return Environment(toolchain, problem, remedy, python, libraries)


def check_backends(
    own: Environment, gpus: Gpus, users: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Yield the abilities of each backend in our interpreter."""
    for backend in backend_names():
        ability = own.ability(backend, gpus)
        library = own.libraries[describe_backend(backend).module]
        engines = list(users.get(backend, ()))
        facts = {"version": library.version, **(library.facts or {}), "engines": engines}
        if ability.problem:
            needed = f"needed by {plural(len(engines), 'engine')} of this project"
            text = (
                f"{ability.problem}; {needed if engines else 'no engine of this project uses it'}"
            )
            state, remedy = _state(ability), ability.remedy
            yield Finding("backend", backend, state, text, remedy, facts, ability.elsewhere)
        else:
            yield Finding("backend", backend, OK, f"{library.version}: {ability.text}", facts=facts)


def check_toolchain(
    environment: Environment, gpus: Gpus, users: Mapping[str, Sequence[str]]
) -> Finding:
    """Return the libraries of a toolchain and the abilities of its backends."""
    assert environment.toolchain is not None
    name, libraries = environment.toolchain.name, environment.libraries
    engines = [engine for names in users.values() for engine in names]
    versions = {item.name: item.version for item in libraries.values() if item.is_usable}
    facts = {"python": str(environment.toolchain.python), "versions": versions, "engines": engines}
    if environment.problem:
        state = UNKNOWN if environment.unknown else MISSING
        return Finding("toolchain", name, state, environment.problem, environment.remedy, facts)
    backends = list(users) or [
        name for name in backend_names() if libraries[describe_backend(name).module].is_usable
    ]
    abilities = [(backend, environment.ability(backend, gpus)) for backend in backends]
    failed = [ability for _, ability in abilities if ability.problem]
    if not backends:
        problem, remedy = "no backend library is installed", f"{environment.toolchain.pip} tensorrt"
        failed = [Ability(problem=problem, remedy=remedy)]
    parts = [
        f"{environment.python}: "
        + ", ".join(f"{item} {version}" for item, version in versions.items())
    ]
    parts += [f"{backend} {ability.text}" for backend, ability in abilities if ability.text]
    parts += [ability.problem for ability in failed]
    solved = next((ability for ability in failed if ability.remedy), Ability())
    states = {_state(ability) for ability in failed}
    state = next((item for item in (MISSING, UNKNOWN) if item in states), OK)
    text = "; ".join(parts)
    return Finding("toolchain", name, state, text, solved.remedy, facts, solved.elsewhere)


def check_recorded_environment(toolchains: Iterable[Toolchain]) -> Iterator[Finding]:
    """Yield what else decides results here: packages, environment variables, processor."""
    packages = {"": dict(sorted(installed_versions(tuple(sys.path)).items()))}
    for toolchain in toolchains:
        packages[toolchain.name] = dict(sorted(installed_versions(module_path(toolchain)).items()))
    for name, versions in packages.items():
        place = f"the toolchain {name}" if name else sys.executable
        text = f"{plural(len(versions), 'package')} in {place}"
        yield Finding("packages", name or "packages", OK, text, facts=versions)
    variables = environment_facts(ENVIRONMENT, os.environ)
    text = ", ".join(f"{name}={value}" for name, value in sorted(variables.items()))
    yield Finding("variables", "variables", OK, text or "none that change results", facts=variables)
    cpu = device_facts(("cpu", "cores"))
    text = f"{cpu.get('cpu.model', 'unknown')}, {cpu['cpu.cores']} processors"
    yield Finding("cpu", "cpu", OK, text, facts=cpu)


def check_folders(project: Project) -> Iterator[Finding]:
    """Yield the folders written by a build, and the shared cache."""
    store = store_folder(project.state)
    for name, folder in (("build", project.build), ("state", project.state), ("store", store)):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        facts: dict[str, Any] = {"path": str(folder), "exists": folder.exists()}
        try:
            if not existing.is_dir():
                raise NotADirectoryError(20, "is not a folder", str(existing))
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(b"x")
                file.flush()
            free = shutil.disk_usage(existing).free
        except OSError as error:
            text = f"{folder} is not writable: {(error.strerror or str(error)).lower()}"
            remedy = f"sudo chown -R $USER {existing}"
            yield Finding("folder", name, BROKEN, text, remedy, {**facts, "writable": False})
            continue
        facts |= {"writable": True, "free_bytes": free}
        used = f", {size(_bytes_in(folder))} in use" if name == "store" and folder.exists() else ""
        text = f"{folder}, {size(free)} free{used}"
        if free < _LOW_SPACE_BYTES:
            remedy = "buildsys cache gc --max-size 10GiB"
            yield Finding("folder", name, MISSING, f"{text}: disk space is low", remedy, facts)
        else:
            yield Finding("folder", name, OK, text, facts=facts)
    remote, keys = project.shared_cache(), project.signing()
    if keys.key is not None:
        try:
            text = f"results are signed with {key_name(SigningKey(keys.key).public_key)}"
            yield Finding("signing", "key", OK, text)
        except StageError as error:
            yield Finding("signing", "key", MISSING, error.problem, error.hint)
    if remote is not None:
        remote["url"] = mask_secrets(remote["url"])
        signed = ""
        if keys.trusted:
            signed = f", {plural(len(keys.trusted), 'trusted key')}, unsigned: {keys.unsigned}"
        text = f"{remote['url']}, {remote['mode']}{signed}"
        yield Finding("folder", "shared cache", OK, text, facts=remote)


def _bytes_in(folder: Path) -> int:
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(f"{where}/{name}").st_size
    return total
