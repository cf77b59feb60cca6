"""buildsys doctor: state of the installation, with remedies, or of built engines."""

from __future__ import annotations

import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import buildsys
from buildsys.cli.command import add_json, add_names, print_json
from buildsys.cli.console.rows import Row, print_rows
from buildsys.cli.machine_checks import (
    BROKEN,
    LIBRARIES,
    MISSING,
    OK,
    UNKNOWN,
    Environment,
    Finding,
    check_backends,
    check_environment,
    check_folders,
    check_gpus,
    check_libraries_here,
    check_recorded_environment,
    check_toolchain,
)
from buildsys.errors import ManifestErrors, UsageError
from buildsys.execution.freshness import is_strict
from buildsys.project.load import Project, empty_project, load_project
from buildsys.report.formatting import plural
from buildsys.system.backend_registry import backend_names, describe_backend
from buildsys.system.processes import package_environment
from buildsys.system.toolchains import check_libraries, locate_toolchain

SCHEMA = "buildsys/doctor/1"
_SOMETHING_BROKEN = 1


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
    states = [check.state for check in checks]
    if as_json:
        findings = [check.as_json() for check in checks]
        print_json({"schema": SCHEMA, "findings": findings, "next": following})
    else:
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
        print_rows(rows, ["; ".join(counts), f"next: {following}"])
    return code or (_SOMETHING_BROKEN if broken else 0)


def _read_project(root: Path) -> tuple[Project, Finding, int]:
    """Read the project; wrong manifests don't prevent other checks."""
    try:
        project = load_project(root, remember=False)
    except ManifestErrors as error:
        first = error.errors[0]
        text = f"{plural(len(error.errors), 'error')} in the manifests, first {first}"
        place = ":".join(str(part) for part in (first.file, first.line) if part is not None)
        check = Finding("project", "manifests", BROKEN, text, f"correct {place}")
        return empty_project(root), check, error.exit_code
    engines = sum(len(model.data["engines"]) for model in project.models.values())
    models = plural(len(project.models), "model")
    text = f"{models}, {plural(engines, 'engine')} in {project.root}"
    return project, Finding("project", "manifests", OK, text), 0


def _checks(project: Project, manifests: Finding) -> Iterator[Finding]:
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
    yield from gpu_checks
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
