"""Registry of backends: packages found by name. Standard library only.

A backend is a package with these modules. Each is imported only where it is needed:

- ``description``: ``DESCRIPTION``, a ``BackendDescription``; standard library only.
- ``options``: ``ENGINE``, the fields of its engines in a manifest, and optionally ``problems``,
  checks across them.
- ``backend``: the functions of ``buildsys.backends.interface.Backend``, called in workers.

Ours are the folders of ``buildsys/backends``. The packages of others are entry points of the group
``buildsys.backends``. They are read only for names that are not ours, or to list all names: reading
them takes longer than everything else that a run with nothing to do has to know about backends.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from buildsys.errors import Unavailable
from buildsys.system.files import link_into

GROUP = "buildsys.backends"
NOT_INSTALLED = "is not installed here"  # a predicate of a library
_FOLDER = f"{Path(__file__).resolve().parents[1]}/backends"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SYSTEMS = {"macOS": "Darwin"}  # title -> sys.platform, capitalized


@dataclass(frozen=True)
class Gpus:
    """GPUs visible to CUDA, or the reason for their absence."""

    capabilities: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Ability:
    """Abilities of a backend on this machine, or its problem."""

    text: str = ""
    problem: str = ""
    remedy: str = ""
    unknown: bool = False  # the problem is a time-out


@dataclass(frozen=True)
class Reason:
    """A reason against running an engine here."""

    kind: str  # for programs: "gpu", "library", "version", "digest", …
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return problem and remedy on one line."""
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


@dataclass(frozen=True)
class Record:
    """The content of an ``engine.json``; missing fields are empty."""

    backend: str
    figures: Mapping[str, Any] = field(repr=False)

    def map(self, name: str) -> Mapping[str, Any]:
        """Return a mapping field."""
        value = self.figures.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        """Return the facts about the files in its folder, engine first."""
        files = self.map("files").items()
        return {str(name): facts for name, facts in files if isinstance(facts, Mapping)}


@dataclass(frozen=True)
class Machine:
    """The facts of a machine that decide whether an engine runs on it."""

    platform: str  # operating system and processor family: "Linux x86_64"
    cpu: str = ""
    instructions: tuple[str, ...] = ()
    macos: str = ""  # version
    gpus: tuple[Mapping[str, Any], ...] = ()  # as CUDA sees them: system.devices.GPU_FACTS
    no_gpu: str = "no NVIDIA driver is installed"  # a clause, if there are none
    libraries: Mapping[str, str] = field(default_factory=dict)  # module of an engine -> version
    cuda: Mapping[str, str] = field(default_factory=dict)  # module -> CUDA's major version
    providers: tuple[str, ...] = ()  # of its ONNX Runtime
    packages: Mapping[str, str] = field(default_factory=dict)  # distribution -> version

    @property
    def system(self) -> str:
        """The operating system, as ``sys.platform`` capitalized."""
        return self.platform.partition(" ")[0]

    def why_no_gpu(self) -> str:
        """Explain the absence of a GPU, as a clause."""
        return self.no_gpu

    def library_version(self, module: str) -> str:
        """Return the version of an engine library, "" if unknown.

        Raises: Unavailable: it is not installed or cannot be loaded, as a predicate.
        """
        if module not in self.libraries:
            raise Unavailable(NOT_INSTALLED)
        return self.libraries[module]

    def cuda_of_library(self, module: str) -> str:
        """Return the CUDA major version that a library was made for, or ""."""
        return self.cuda.get(module, "")

    def onnxruntime_providers(self) -> tuple[str, ...]:
        """List the execution providers of the installed ONNX Runtime."""
        return self.providers

    def package_version(self, distribution: str) -> str:
        """Return the version of an installed distribution, or ""."""
        return self.packages.get(distribution, "")


@dataclass(frozen=True)
class BackendDescription:
    """The facts of a backend known without its library."""

    title: str  # in messages and reports
    # module -> distribution; the first one is the engine library, and its version is in the keys
    libraries: Mapping[str, str]
    install: str  # the command to install them here
    packages: str  # to install them with pip into a toolchain, the engine library first
    engine_file: str = "engine.engine"
    able: str = "builds and runs here"  # with its library; see ``ability``
    data_file: str = ""  # weights outside the engine file
    # builds every precision from the simplified graph, after a search from the converted one
    takes_float32: bool = False
    takes_images: bool = True  # has the operators of preprocessing
    takes_program: bool = False  # builds every precision from the captured PyTorch program
    takes_definition: bool = False  # builds networks defined by hand with TensorRT's API
    calibrators: tuple[str, ...] = ()  # algorithms of calibration for its own int8 ranges
    # major version of the library -> the newest opset and IR version that it reads, unless it reads
    # those of ONNX Runtime: graphs are lowered for it
    newest_graphs: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    narrow_integers: bool = False  # computes int64 in 32 bits
    takes_ranges: bool = True  # builds for ranges of shapes, from ``dims`` and ``inputs``
    # environment variables that change results: families of system.versions or patterns
    environment: tuple[str, ...] = ()
    operator_kinds: tuple[str, ...] = ("function",)  # ways to run custom operators, preferred first
    needs_gpu_library: bool = False  # installing its library without a GPU is of no use
    builds_without_gpu: bool = False  # for engines that run on one
    keeps_timings: bool = False  # builds with a timing cache
    runs_on: str = ""  # the only operating system that runs its engines: "macOS"
    same_platform: bool = False  # an engine runs on the operating system of its build only
    any_processor: bool = False  # an engine also runs on other families of processors
    problem: str = field(default="", compare=False)  # why a package is broken

    @property
    def module(self) -> str:
        """The module of the engine library."""
        return next(iter(self.libraries))

    @property
    def distribution(self) -> str:
        """The distribution of the engine library."""
        return self.libraries[self.module]

    @property
    def needs_cuda(self) -> bool:
        """True if its libraries include the bindings of CUDA."""
        return "cuda-bindings" in self.libraries.values()

    def system_problem(self, system: str = "") -> Unavailable | None:
        """Return the reason against running its engines on an operating system, e.g. ``Linux``.

        The default is this one.
        """
        here = system or sys.platform.capitalize()
        if not self.runs_on or here == _SYSTEMS[self.runs_on]:
            return None
        problem = f"{self.title} runs engines on {self.runs_on} only, and this is {here}"
        return Unavailable(problem, f"copy the engine's folder to a machine with {self.runs_on}")

    def accepts_all_sizes(self, options: Mapping[str, Any]) -> bool:
        """Return False if the manifest gives an engine other shapes than all those of ``dims``."""
        return options.get("profiles") is None

    def ability(
        self,
        version: str,  # noqa: ARG002
        facts: Mapping[str, Any],  # noqa: ARG002
        gpus: Gpus,  # noqa: ARG002
        *,
        cuda: bool = False,  # noqa: ARG002
    ) -> Ability:
        """Return the abilities of the installed library here, with ``cuda`` those on the GPU.

        ``facts`` are those that the probe of the library reports.
        """
        return Ability(self.able)

    def reasons(
        self,
        record: Record,  # noqa: ARG002
        here: str,  # noqa: ARG002
        machine: Machine,  # noqa: ARG002
    ) -> Iterator[Reason]:
        """Yield reasons against running an engine on a machine.

        ``here`` is the version of its library there, "" if not installed. All facts are those of
        ``machine``, which may be another one than this.
        """
        return iter(())

    def notes(self, record: Record) -> Iterator[str]:  # noqa: ARG002
        """Yield facts worth knowing before an engine runs here."""
        return iter(())

    def runs_on_gpu(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Check whether an engine with these options runs on an NVIDIA GPU."""
        return False

    def uses_gpu_clock(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Check whether an engine on a GPU is timed by the GPU's clock as well."""
        return self.needs_cuda

    def further_files(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the names of further files of an engine."""
        return ()

    def run_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return further distributions that decide what an engine computes."""
        return tuple(self.libraries.values())[1:]

    def build_tools(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return further distributions used by a build."""
        return ()

    def auto_precisions(self, options: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the precisions that a search can complete, that of ``auto`` first."""
        return () if self.takes_float32 else ("fp16", "bf16", "int8", "fp8")

    def counts_cores(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Check whether a build depends on the number of cores."""
        return False

    def quantizes(self, options: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Check whether the build itself calibrates and quantizes the float32 graph."""
        return False

    def not_reproducible(self, options: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Return the reason for engine files that differ from build to build, or ""."""
        return ""

    def exact_float32(self, options: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Return the YAML for full float32 arithmetic, or "" if the engine has it."""
        return ""


@dataclass(frozen=True)
class BackendPackage:
    """The package of a backend."""

    module: str
    owner: str = ""  # distribution and version, "" for ours
    metadata: str = ""  # folder of the distribution
    rival: str = ""  # another distribution with a backend of this name


class BrokenBackendError(Unavailable):
    """A module of a backend's package cannot be imported."""


def find_package(name: str) -> BackendPackage | None:
    """Return the package of a backend, or None."""
    if not _NAME.fullmatch(name):
        return None
    if os.path.exists(f"{_FOLDER}/{name}/description.py"):  # noqa: PTH110 - on every run
        return BackendPackage(f"{GROUP}.{name}")
    return other_backends().get(name)


@cache
def our_backends() -> tuple[str, ...]:
    """Return the names of the backends in this package."""
    folders = sorted(entry.name for entry in os.scandir(_FOLDER) if entry.is_dir())
    return tuple(name for name in folders if Path(_FOLDER, name, "description.py").is_file())


@cache
def other_backends() -> Mapping[str, BackendPackage]:
    """Return the backends of other distributions by name."""
    from importlib.metadata import entry_points  # slow

    from buildsys.system.versions import normalized  # slow

    packages: dict[str, BackendPackage] = {}
    for entry in entry_points(group=GROUP):
        distribution = entry.dist
        name = distribution.metadata["Name"] if distribution is not None else ""
        if normalized(name) == "buildsys" or entry.name in our_backends():
            continue
        owner = f"{name} {distribution.version}" if distribution is not None else "?"
        where = str(getattr(distribution, "_path", ""))
        module = entry.value.partition(":")[0]
        first = packages.setdefault(entry.name, BackendPackage(module, owner, where))
        if first.owner != owner:
            packages[entry.name] = replace(first, rival=owner)
    return packages


def backend_names() -> tuple[str, ...]:
    """Return the names of all backends, ours first."""
    return (*our_backends(), *sorted(other_backends()))


@cache
def describe_backend(name: str) -> BackendDescription:
    """Return the description of a backend; a broken package's has a ``problem``.

    Raises: Unavailable: there is no such backend.
    """
    try:
        description: BackendDescription = import_backend(name, "description").DESCRIPTION
    except BrokenBackendError as error:
        return BackendDescription(name, {name: name}, error.hint, name, problem=error.problem)
    return description


def import_backend(name: str, part: str) -> ModuleType:
    """Return a module of a backend's package.

    Raises: BrokenBackendError: it cannot be imported. Unavailable: there is no such backend.
    """
    package = find_package(name)
    if package is None:
        names = ", ".join(backend_names())
        hint = f"use one of {names}, or install the package that has it"
        raise Unavailable(f"there is no backend {name!r}", hint)
    if package.rival:
        problem = f"{package.owner} and {package.rival} both have a backend {name}"
        raise BrokenBackendError(problem, "uninstall one of them")
    try:
        module = import_module(f"{package.module}.{part}")
        if part == "description" and not isinstance(module.DESCRIPTION, BackendDescription):
            raise TypeError("its DESCRIPTION is not a BackendDescription")
        return module
    except Exception as error:  # whatever a package does when it is imported
        if not package.owner:
            raise
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        problem = f"the backend {name} of {package.owner} cannot be loaded: {cause}"
        hint = f"pip install --force-reinstall {package.owner.partition(' ')[0]}"
        raise BrokenBackendError(problem, hint) from error


def package_folder(module: str) -> Path | None:
    """Return the folder of a package, without importing it."""
    with suppress(ImportError):
        spec = find_spec(module)
        if spec is not None and spec.submodule_search_locations:
            return Path(spec.submodule_search_locations[0])
    return None


def package_files(name: str) -> Iterator[Path]:
    """Yield the files that decide the fields of another distribution's backend."""
    package = find_package(name)
    if package is None or not package.owner:
        return
    if package.metadata:
        yield Path(package.metadata, "entry_points.txt")
    folder = package_folder(package.module)
    if folder is not None:
        yield folder
        yield from sorted(folder.glob("*.py"))


def uses_tf32(options: Mapping[str, Any]) -> bool:
    """Check whether an engine on a GPU multiplies float32 in TF32, the default there."""
    chosen = options.get("tf32", (options.get("flags") or {}).get("tf32"))
    return True if chosen is None else bool(chosen)


def link_packages(folder: Path) -> Path:
    """Return ``folder`` with links to this package and to those of other backends.

    It is all that the interpreter of a toolchain gets of ours. The metadata of a distribution is
    linked as well: there, too, its backend is an entry point.
    """
    ours = Path(_FOLDER).parent
    link_into(folder, ours.name, ours)
    for package in other_backends().values():
        top = package.module.partition(".")[0]
        package_root = package_folder(top)
        if package_root is not None and package.metadata:
            link_into(folder, top, package_root)
            link_into(folder, Path(package.metadata).name, Path(package.metadata))
    return folder
