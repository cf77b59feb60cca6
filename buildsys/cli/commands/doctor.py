"""buildsys doctor: state of the installation, with remedies, or of built engines."""

import os
import platform
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import buildsys
from buildsys.cli.command import add_json, add_names, print_json
from buildsys.cli.console.rows import Row, print_rows
from buildsys.errors import ManifestErrors, StageError, Unavailable, UsageError
from buildsys.execution.build_cache import store_folder
from buildsys.execution.freshness import is_strict
from buildsys.project.load import Project, empty_project, load_project
from buildsys.report.formatting import plural, size
from buildsys.store.signatures import SigningKey
from buildsys.system.backend_registry import Ability, Gpus, backend_names, describe_backend
from buildsys.system.devices import DRIVER_FILES, GpuError, device_facts, read_gpus
from buildsys.system.printable import mask_secrets
from buildsys.system.processes import package_environment
from buildsys.system.signatures import key_name
from buildsys.system.toolchains import (
    LIMIT_VARIABLE,
    Library,
    Toolchain,
    check_libraries,
    find_interpreter,
    locate_toolchain,
)
from buildsys.system.versions import ENVIRONMENT, environment_facts, installed_versions, module_path

SCHEMA = "buildsys/doctor/1"
_SOMETHING_BROKEN = 1
OK, MISSING, BROKEN = "ok", "missing", "broken"  # broken: something that the project needs
UNKNOWN = "unknown"  # a probe exceeded its time limit
# needed by every project
LIBRARIES = ("torch", "torchvision", "numpy", "onnx", "onnxscript", "onnxsim", "ml_dtypes")
_LOW_SPACE_BYTES = 2 << 30
_ABLE = Ability()
_ON_A_GPU = "on a machine with an NVIDIA GPU"
_AGAIN = f"run it again when this machine is idle; {LIMIT_VARIABLE}=2min allows more time"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of ``buildsys doctor``."""
    add_names(parser, "[ENGINE ...]")
    parser.epilog = (
        "ENGINE is an engine file, its folder, or a target name such as MODEL:NAME or MODEL:\n"
        "check that it runs here and, if it belongs to this project, that it matches its manifest\n"
        "and has passed its checks; if not, list all reasons and remedies (exit code 1)\n"
        "without ENGINE, --json has all packages, variables and devices that results depend on"
    )
    add_json(parser)
    for name, text in (
        ("trusted", "ENGINE must be signed by this key (repeatable); default: cache.trusted_keys"),
        ("revoked", "do not trust this key, in addition to cache.revoked_keys (repeatable)"),
    ):
        parser.add_argument(f"--{name}-key", action="append", default=[], help=text)


def run(options: Namespace) -> int:
    """Return 1 if a needed part is broken, or an engine unusable."""
    if options.names:
        from buildsys.cli.engine_checks import check_engines

        keys = options.trusted_key, options.revoked_key
        return check_engines(options.root, options.names, *keys, as_json=options.json)
    if options.trusted_key or options.revoked_key:
        raise UsageError("keys are for engines", "name an engine: doctor ENGINE")
    return check_machine(options.root, as_json=options.json)


def check_machine(root: Path, *, as_json: bool) -> int:
    """Print the state of the installation; return the exit code."""
    project, manifests, code = _read_project(root)
    checks = list(_checks(project, manifests))
    broken = [check.remedy or check.text for check in checks if check.state == BROKEN]
    start = "buildsys build" if project.models else "buildsys new MODEL --from SOURCE"
    following = (broken or [start])[0]
    if as_json:
        findings = [check.as_json() for check in checks]
        print_json({"schema": SCHEMA, "findings": findings, "next": following})
    else:
        unused = [check.name for check in checks if check.is_unused and check.kind == "backend"]
        optional = [check for check in checks if check.is_unused and check.kind != "backend"]
        checks = [check for check in checks if not check.is_unused]
        states = [check.state for check in checks]
        counts = [
            f"{states.count(state)} {state}" for state in (BROKEN, MISSING, UNKNOWN)
            if state in states
        ]  # fmt: skip
        if not broken:
            counts.insert(0, "nothing that this project needs is broken")
        rows = []
        for check in checks:
            name = check.name if check.kind == check.name else f"{check.kind} {check.name}"
            details = [f"→ {check.remedy}"] if check.remedy and check.state != OK else []
            rows.append(Row(check.state, name, details, note=check.text))
        for check in optional:
            note = f"{check.text}; no engine of this project needs one"
            rows.append(Row("optional", check.kind, note=note))
        if unused:
            note = "not installed, and needed by no engine of this project"
            details = ["→ pip install 'buildsys[NAME]'"]
            rows.append(Row("optional", f"backends {', '.join(unused)}", details, note=note))
        print_rows(rows, ["; ".join(counts), f"next: {following}"])
    return code or (_SOMETHING_BROKEN if broken else 0)


def _read_project(root: Path) -> "tuple[Project, Finding, int]":
    """Read the project; wrong manifests don't prevent other checks."""
    project = empty_project(root)
    try:
        project = load_project(root, remember=False)
        project.require_all()
    except ManifestErrors as error:
        first = error.errors[0]
        text = f"{plural(len(error.errors), 'error')} in the manifests, first {first}"
        place = ":".join(str(part) for part in (first.file, first.line) if part is not None)
        check = Finding("project", "manifests", BROKEN, text, f"correct {place}")
        return project, check, error.exit_code
    engines = sum(len(model.data["engines"]) for model in project.models.values())
    models = plural(len(project.models), "model")
    text = f"{models}, {plural(engines, 'engine')} in {project.root}"
    return project, Finding("project", "manifests", OK, text), 0


def _checks(project: Project, manifests: "Finding") -> "Iterator[Finding]":
    engines: list[dict[str, Any]] = [
        {**engine, "name": f"{name}:{engine['name']}"}
        for name, model in project.models.items()
        for engine in model.data["engines"]
    ]
    toolchains = [
        locate_toolchain(name, python, env.items(), project.root, os.environ)
        for name, (python, env) in project.toolchains().items()
    ]
    with ThreadPoolExecutor(2) as threads:  # toolchains are probed while our libraries are
        probed = threads.map(check_environment, toolchains)
        names = (*LIBRARIES, *(describe_backend(backend).module for backend in backend_names()))
        python = Path(sys.executable)
        libraries = check_libraries(python, names, package_environment())
        environments: dict[str | None, Environment] = {
            toolchain.name: environment
            for toolchain, environment in zip(toolchains, probed, strict=True)
        }
    has_cuda = find_spec("cuda") is not None
    environments[None] = own = Environment(None, libraries=libraries, has_cuda=has_cuda)

    def users(toolchain: str | None) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}  # by backend
        for engine in engines:
            if engine["toolchain"] == toolchain:
                names.setdefault(engine["backend"], []).append(engine["name"])
        return names

    gpus, gpu_checks = check_gpus()
    version, folder = platform.python_version(), str(Path(buildsys.__file__).resolve().parent)
    text = f"{platform.python_implementation()} {version}, {sys.executable}; "
    text += f"buildsys {buildsys.__version__} in {folder}"
    facts = {
        "version": version, "executable": sys.executable, "buildsys": buildsys.__version__,
        "folder": folder,
    }  # fmt: skip
    yield Finding("python", "python", OK, text, facts=facts)
    yield manifests
    yield from check_libraries_here(libraries)
    yield from check_backends(own, gpus, users(None))
    for toolchain in toolchains:
        yield check_toolchain(environments[toolchain.name], gpus, users(toolchain.name))
    on_gpu = [e["name"] for e in engines if describe_backend(e["backend"]).runs_on_gpu(e)]
    for check in gpu_checks:
        is_known = gpus.capabilities or manifests.state != OK
        yield check if is_known else replace(check, facts={"engines": on_gpu})
    yield from check_folders(project)
    yield from check_recorded_environment(toolchains)
    for engine in engines:
        backend = engine["backend"]
        if engine["required"] or is_strict():
            cuda = backend == "onnxruntime" and describe_backend(backend).runs_on_gpu(engine)
            ability = environments[engine["toolchain"]].ability(backend, gpus, cuda=cuda)
            if ability.problem:
                text = f"required, but cannot be built here: {ability.problem}"
                state = UNKNOWN if ability.unknown else BROKEN
                yield Finding("engine", engine["name"], state, text, ability.remedy)


@dataclass(frozen=True)
class Finding:
    """State of one part of the installation, with a remedy."""

    kind: str  # python, project, library, toolchain, engine, packages, cpu …
    name: str
    state: str = OK
    text: str = ""
    remedy: str = ""  # a command where there is one
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_unused(self) -> bool:
        """True of a missing backend or GPU that no engine needs."""
        is_missing = self.state == MISSING and "engines" in self.facts
        is_needed = self.facts.get("version") or self.facts.get("engines")
        return self.kind in ("backend", "gpu") and is_missing and not is_needed

    def as_json(self) -> dict[str, Any]:
        """Convert the check to the field names of the JSON output."""
        fields = {
            "about": self.kind, "name": self.name, "state": self.state, "text": self.text,
            "mend": self.remedy,
        }  # fmt: skip
        return {**fields, "facts": dict(self.facts)} if self.facts else fields


def _obstacle(library: Library, name: str, install: str) -> Ability:
    """Describe why a library cannot be used, and what installs it."""
    if library.timed_out:
        return Ability(problem=f"{name}: {library.problem}", remedy=_AGAIN, unknown=True)
    if library.missing:
        return Ability(problem=f"{name} is not installed", remedy=install)
    again = install.replace("pip install", "pip install --force-reinstall", 1)
    return Ability(problem=f"{name} cannot be imported: {library.problem}", remedy=again)


def check_libraries_here(libraries: Mapping[str, Library]) -> Iterator[Finding]:
    """Yield the state of the libraries needed by every project."""
    for name in LIBRARIES:
        library = libraries[name]
        if library.is_usable:
            yield Finding("library", name, OK, library.version, facts=dict(library.facts or {}))
            continue
        # each version of torchvision needs one version of torch
        packages = "torch torchvision" if name in ("torch", "torchvision") else name
        obstacle = _obstacle(library, name, f"{sys.executable} -m pip install {packages}")
        state = UNKNOWN if obstacle.unknown else BROKEN
        yield Finding("library", name, state, obstacle.problem, obstacle.remedy)


def check_gpus() -> tuple[Gpus, list[Finding]]:
    """Return the GPUs of this machine and their checks."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        gpus = read_gpus(visible)
        problem, remedy = "the NVIDIA driver finds no GPU", "nvidia-smi"
        if visible is not None:
            problem = f"CUDA_VISIBLE_DEVICES={visible} hides all GPUs"
            remedy = "unset CUDA_VISIBLE_DEVICES"
    except GpuError as error:
        gpus = []
        problem, remedy = f"the NVIDIA driver does not answer ({error})", "nvidia-smi"
        if not any(Path(path).exists() for path in DRIVER_FILES):
            problem = "this machine has no NVIDIA driver"
            remedy = "if there is a GPU, install its driver"
    if not gpus:
        return Gpus(problem=problem), [Finding("gpu", "none", MISSING, problem, remedy)]
    checks = []
    for gpu in gpus:
        memory = f"{size(gpu['memory_bytes'] or 0)} ({size(gpu['free_bytes'] or 0)} free)"
        text = f"compute capability {gpu['compute_capability']}, {memory}, driver {gpu['driver']}"
        text += f", CUDA {gpu['cuda_driver']}, MIG {gpu['mig'] or 'unknown'}"
        facts = {name: fact for name, fact in gpu.items() if name != "uuid"}
        checks.append(Finding("gpu", gpu["name"], OK, text, facts=facts))
    return Gpus(tuple(gpu["compute_capability"] for gpu in gpus)), checks


def _state(ability: Ability) -> str:
    return UNKNOWN if ability.unknown else MISSING if ability.problem else OK


@dataclass(frozen=True)
class Environment:
    """An interpreter and its libraries."""

    toolchain: Toolchain | None  # None: our own interpreter
    obstacle: Ability = _ABLE  # to all backends
    python: str = ""
    libraries: Mapping[str, Library] = field(default_factory=dict)
    has_cuda: bool = True  # cuda-bindings

    def ability(self, backend: str, gpus: Gpus, *, cuda: bool = False) -> Ability:
        """Return the abilities of a backend, with ``cuda`` on the GPU."""
        if self.obstacle.problem:
            return self.obstacle
        description = describe_backend(backend)
        if description.problem:
            return Ability(problem=description.problem, remedy=description.install)
        library = self.libraries[description.module]
        pip = self.toolchain.pip if self.toolchain else ""
        if not library.is_usable:
            install = f"{pip} {description.packages}" if pip else description.install
            obstacle = _obstacle(library, backend, install)
            if library.missing and description.needs_gpu_library and not gpus.capabilities:
                problem = f"{obstacle.problem}, and {gpus.problem}"
                return Ability(problem=problem, remedy=f"{_ON_A_GPU}: {install}")
            return obstacle
        if description.needs_cuda and not self.has_cuda:
            remedy = f"{pip} cuda-bindings" if pip else "pip install 'buildsys[gpu]'"
            return Ability(problem=f"{backend} needs cuda-bindings", remedy=remedy)
        return description.ability(library.version, library.facts or {}, gpus, cuda=cuda)


def check_environment(toolchain: Toolchain) -> Environment:
    """Probe the interpreter of a toolchain and its libraries."""
    try:
        interpreter, obstacle = find_interpreter(toolchain), _ABLE
    except StageError as error:
        is_passing = not isinstance(error, Unavailable)
        obstacle = Ability("", error.problem, error.hint, unknown=is_passing)
        return Environment(toolchain, obstacle)
    names = ("numpy", *(describe_backend(name).module for name in backend_names()))
    variables = toolchain.environment(os.environ)
    libraries = check_libraries(toolchain.python, names, variables)
    if not libraries["numpy"].is_usable:
        title = f"numpy of the toolchain {toolchain.name}"
        obstacle = _obstacle(libraries["numpy"], title, f"{toolchain.pip} numpy")
    python = f"{interpreter.implementation} {interpreter.version}, {toolchain.python}"
    return Environment(toolchain, obstacle, python, libraries, interpreter.finds("cuda"))


def check_backends(
    own: Environment, gpus: Gpus, users: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Yield the abilities of each backend in our interpreter."""
    for backend in backend_names():
        ability = own.ability(backend, gpus)
        library = own.libraries[describe_backend(backend).module]
        engines = list(users.get(backend, ()))
        facts = {"version": library.version, **(library.facts or {}), "engines": engines}
        text = f"{library.version}: {ability.text}"
        if ability.problem:
            needed = (
                f"needed by {plural(len(engines), 'engine')}" if engines else "needed by no engine"
            )
            text = f"{ability.problem}; {needed} of this project"
        state = _state(ability)
        yield Finding("backend", backend, state, text, ability.remedy, facts)


def check_toolchain(
    environment: Environment, gpus: Gpus, users: Mapping[str, Sequence[str]]
) -> Finding:
    """Return the libraries of a toolchain and the abilities of its backends."""
    assert environment.toolchain is not None
    name, libraries = environment.toolchain.name, environment.libraries
    engines = [engine for names in users.values() for engine in names]
    versions = {item.name: item.version for item in libraries.values() if item.is_usable}
    facts = {"python": str(environment.toolchain.python), "versions": versions, "engines": engines}
    backends = users or [
        backend for backend in backend_names() if describe_backend(backend).module in versions
    ]
    abilities = {backend: environment.ability(backend, gpus) for backend in backends}
    listed = ", ".join(f"{item} {version}" for item, version in versions.items())
    parts = [a.problem or f"{backend} {a.text}" for backend, a in abilities.items()]
    text = "; ".join([f"{environment.python}: {listed}", *parts])
    text = environment.obstacle.problem or text
    problems = [a for a in (environment.obstacle, *abilities.values()) if a.problem]
    worst = min(problems, key=lambda ability: ability.unknown, default=_ABLE)
    return Finding("toolchain", name, _state(worst), text, worst.remedy, facts)


def check_recorded_environment(toolchains: Iterable[Toolchain]) -> Iterator[Finding]:
    """Yield what else decides results here: packages, environment variables, processor."""
    packages = {"": installed_versions(tuple(sys.path))}
    packages |= {chain.name: installed_versions(module_path(chain)) for chain in toolchains}
    for name, versions in packages.items():
        place = f"the toolchain {name}" if name else sys.executable
        text = f"{plural(len(versions), 'package')} in {place}"
        facts = dict(sorted(versions.items()))
        yield Finding("packages", name or "packages", OK, text, facts=facts)
    variables = environment_facts(ENVIRONMENT, os.environ)
    text = ", ".join(f"{name}={value}" for name, value in sorted(variables.items()))
    yield Finding("variables", "variables", OK, text or "none that change results", facts=variables)
    cpu = device_facts(("cpu", "cores"))
    text = f"{cpu.get('cpu.model', 'unknown')}, {cpu['cpu.cores']} processors"
    yield Finding("cpu", "cpu", OK, text, facts=cpu)


def check_folders(project: Project) -> Iterator[Finding]:
    """Yield the folders written by a build, the signing key and the shared cache."""
    store = store_folder(project.state)
    for name, folder in (("build", project.build), ("state", project.state), ("store", store)):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        facts: dict[str, Any] = {"path": str(folder), "exists": folder.exists()}
        facts["writable"] = existing.is_dir() and os.access(existing, os.W_OK)
        if not facts["writable"]:
            text, remedy = f"{folder} is not writable", f"sudo chown -R $USER {existing}"
            yield Finding("folder", name, BROKEN, text, remedy, facts)
            continue
        facts["free_bytes"] = free = shutil.disk_usage(existing).free
        text, is_low = f"{folder}, {size(free)} free", free < _LOW_SPACE_BYTES
        text += ": disk space is low" if is_low else ""
        remedy = "buildsys cache gc --max-size 10GiB" if is_low else ""
        yield Finding("folder", name, MISSING if is_low else OK, text, remedy, facts)
    remote, keys = project.shared_cache(), project.signing()
    if keys.key is not None:
        try:
            text = f"results are signed with {key_name(SigningKey(keys.key).public_key)}"
            yield Finding("signing", "key", OK, text)
        except StageError as error:
            yield Finding("signing", "key", MISSING, error.problem, error.hint)
    if remote is not None:
        remote["url"] = mask_secrets(remote["url"])
        trusted = f", {plural(len(keys.trusted), 'trusted key')}" if keys.trusted else ""
        text = f"{remote['url']}, {remote['mode']}{trusted}"
        yield Finding("folder", "shared cache", OK, text, facts=remote)
