"""buildsys doctor: state of the installation, with remedies."""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import buildsys
from buildsys.cli.command import add_json, add_names, print_json
from buildsys.cli.commands.doctor.machine import (
    BROKEN,
    LIBRARIES,
    MISSING,
    OK,
    UNKNOWN,
    Environment,
    Finding,
    check_backends,
    check_environment,
    check_extras,
    check_folders,
    check_gpus,
    check_libraries_here,
    check_recorded_environment,
    check_toolchain,
)
from buildsys.cli.commands.doctor.next_step import next_step
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.model_filter import ModelFilter, add_filter
from buildsys.errors import ManifestErrors, UsageError
from buildsys.execution.freshness import is_strict
from buildsys.project.load import Project, empty_project, load_project
from buildsys.report.formatting import plural
from buildsys.system.backend_registry import backend_names, describe_backend
from buildsys.system.interpreters.probe import check_libraries, probe_limit_s
from buildsys.system.interpreters.toolchain import Toolchain, locate_toolchain
from buildsys.system.processes import package_environment

SCHEMA = "buildsys/doctor/1"
_FOUND_BROKEN = 1


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
    parser.add_argument(
        "--trusted-key",
        action="append",
        default=[],
        help="ENGINE must be signed by this key (repeatable); default: cache.trusted_keys",
    )
    parser.add_argument(
        "--revoked-key",
        action="append",
        default=[],
        help="this key is not trusted (repeatable), like those of cache.revoked_keys",
    )
    add_filter(parser)


def run(options: Namespace) -> int:
    """Return 1 if a needed part is broken, or an engine unusable."""
    only = ModelFilter.of(options)
    keys = {name: getattr(options, f"{name}_key") for name in ("trusted", "revoked")}
    if any(keys.values()) and not (options.names or only):
        raise UsageError("keys are for engines", "name an engine: doctor ENGINE")
    if options.names or only:
        from buildsys.cli.commands.doctor.engines import check_engines

        return check_engines(options.root, options.names, only, **keys, as_json=options.json)
    return check_machine(options.root, as_json=options.json)


def check_machine(root: Path, *, as_json: bool) -> int:
    """Print the state of the installation; return the exit code.

    Raises: UsageError: BUILDSYS_INTERPRETER_LIMIT is not a duration.
    """
    needs = _read_needs(root)
    checks = list(_checks(needs))
    broken = sum(check.state == BROKEN for check in checks)
    others = [
        f"{count} {word}"
        for word in (MISSING, UNKNOWN)
        if (count := sum(check.state == word for check in checks))
    ]
    following = next_step(root, checks)
    if as_json:
        findings = [check.as_json() for check in checks]
        print_json({"schema": SCHEMA, "findings": findings, "next": following})
    else:
        summary = f"{broken} broken" if broken else "nothing that this project needs is broken"
        rows = []
        for check in checks:
            name = check.name if check.kind == check.name else f"{check.kind} {check.name}"
            details = [f"→ {check.remedy}"] if check.remedy and check.state != OK else []
            rows.append(Row(check.state, name, details, note=check.text))
        print_rows(rows, ["; ".join([summary, *others]), f"next: {following}"])
    return needs.exit_code or (_FOUND_BROKEN if broken else 0)


@dataclass(frozen=True)
class _EngineNeed:
    name: str  # resnet50:trt-fp16
    backend: str
    toolchain: str | None
    required: bool
    cuda: bool


@dataclass(frozen=True)
class _ProjectNeeds:
    """The project with its engines and toolchains, if readable."""

    project: Project
    check: Finding
    engines: tuple[_EngineNeed, ...] = ()
    toolchains: tuple[Toolchain, ...] = ()
    exit_code: int = 0

    def users(self, toolchain: str | None) -> dict[str, list[str]]:
        """List backend -> engines of a toolchain or of our interpreter."""
        engines: dict[str, list[str]] = {}
        for engine in self.engines:
            if engine.toolchain == toolchain:
                engines.setdefault(engine.backend, []).append(engine.name)
        return engines


def _read_needs(root: Path) -> _ProjectNeeds:
    """Read the project's needs; wrong manifests don't prevent other checks."""
    try:
        project = load_project(root, remember=False)
    except ManifestErrors as error:
        text = f"{plural(len(error.errors), 'error')} in the manifests, first {error.errors[0]}"
        first = error.errors[0]
        place = ":".join(str(part) for part in (first.file, first.line) if part is not None)
        check = Finding("project", "manifests", BROKEN, text, f"correct {place}")
        return _ProjectNeeds(empty_project(root), check, exit_code=error.exit_code)
    engines = tuple(
        _EngineNeed(
            name=f"{name}:{engine['name']}",
            backend=engine["backend"],
            toolchain=engine["toolchain"],
            required=engine["required"] or is_strict(),
            cuda=engine["backend"] == "onnxruntime"
            and describe_backend("onnxruntime").runs_on_gpu(engine),
        )
        for name, model in project.models.items()
        for engine in model.data["engines"]
    )
    toolchains = tuple(
        locate_toolchain(name, python, env.items(), project.root, os.environ)
        for name, (python, env) in project.toolchains().items()
    )
    models = plural(len(project.models), "model")
    text = f"{models}, {plural(len(engines), 'engine')} in {project.root}"
    return _ProjectNeeds(project, Finding("project", "manifests", OK, text), engines, toolchains)


def _checks(needs: _ProjectNeeds) -> Iterator[Finding]:
    limit_s = probe_limit_s(os.environ)
    with ThreadPoolExecutor(2) as threads:  # toolchains are probed while our libraries are
        probed = threads.map(partial(check_environment, limit_s=limit_s), needs.toolchains)
        python, names = (
            Path(sys.executable),
            (*LIBRARIES, *(describe_backend(backend).module for backend in backend_names())),
        )
        libraries = check_libraries(python, names, package_environment(), limit_s)
        environments: dict[str | None, Environment] = {
            environment.toolchain.name: environment
            for environment in probed
            if environment.toolchain
        }
    environments[None] = own = Environment(
        None, libraries=libraries, has_cuda=find_spec("cuda") is not None
    )
    gpus, gpu_checks = check_gpus()
    version, folder = platform.python_version(), Path(buildsys.__file__).resolve().parent
    text = f"{platform.python_implementation()} {version}, {sys.executable}; "
    text += f"buildsys {buildsys.__version__} in {folder}"
    facts = {
        "version": version, "executable": sys.executable, "buildsys": buildsys.__version__,
        "folder": str(folder),
    }  # fmt: skip
    yield Finding("python", "python", OK, text, facts=facts)
    yield needs.check
    yield from check_libraries_here(libraries)
    yield from check_backends(own, gpus, needs.users(None))
    for toolchain in needs.toolchains:
        environment = environments[toolchain.name]
        yield check_toolchain(environment, gpus, needs.users(toolchain.name))
    yield from gpu_checks
    yield from check_extras(gpus)
    yield from check_folders(needs.project)
    yield from check_recorded_environment(needs.toolchains)
    for engine in needs.engines:
        if engine.required:
            ability = environments[engine.toolchain].ability(engine.backend, gpus, cuda=engine.cuda)
            if ability.problem:
                state, text = BROKEN, f"required, but cannot be built here: {ability.problem}"
                if ability.unknown:
                    state, text = UNKNOWN, f"required; {ability.problem}"
                yield Finding("engine", engine.name, state, text, ability.remedy)
