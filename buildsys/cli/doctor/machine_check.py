"""``doit doctor`` without arguments: what is installed here, what it can build and run, and what mends the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from buildsys.cli.console.listing import Entry, write_page
from buildsys.cli.doctor.backends import (
    INSTALL,
    Place,
    ask_toolchain,
    tell_backends,
    tell_required,
    tell_toolchain,
)
from buildsys.cli.doctor.finding import BROKEN, MISSING, OK, Finding, counted
from buildsys.cli.doctor.gpus_and_folders import Gpus, look_at_folders, look_at_gpus
from buildsys.cli.doctor.libraries import (
    LIBRARIES,
    ask_own,
    look_at_extras,
    look_at_libraries,
    look_at_python,
)
from buildsys.errors import ManifestErrors
from buildsys.manifest.project import Project, empty_project, load_project
from buildsys.manifest.project_settings import declared_toolchains
from buildsys.system.interpreters.probe import probe_limit_s
from buildsys.system.interpreters.toolchain import Toolchain, locate_toolchain

_FOUND_BROKEN = 1


@dataclass(frozen=True)
class _Engine:
    """An engine of the project."""

    name: str  # "resnet50:trt-fp16"
    backend: str
    toolchain: str | None
    required: bool
    cuda: bool


@dataclass(frozen=True)
class _Asked:
    """The project as far as it can be read, and what asks for toolchains and backends in it."""

    project: Project
    finding: Finding
    engines: tuple[_Engine, ...] = ()
    toolchains: tuple[Toolchain, ...] = ()
    exit_code: int = 0

    def users(self, toolchain: str | None) -> dict[str, list[str]]:
        """Return backend -> engines of a toolchain, or of our own interpreter."""
        found: dict[str, list[str]] = {}
        for engine in self.engines:
            if engine.toolchain == toolchain:
                found.setdefault(engine.backend, []).append(engine.name)
        return found


def examine_machine(root: Path, out: TextIO, *, as_json: bool) -> int:
    """Write what is installed here and what it can do; return 1 where something that the project needs is broken.

    Raises: UsageError: BUILDSYS_INTERPRETER_LIMIT is not a duration.
    """
    asked = _read_project(root)
    findings = list(_findings(asked))
    if as_json:
        told = {
            "schema": "buildsys/doctor/1",
            "findings": [finding.as_json() for finding in findings],
        }
        out.write(json.dumps(told, indent=2) + "\n")
    else:
        write_page(out, map(_entry, findings), [_closing(findings)])
    return asked.exit_code or (
        _FOUND_BROKEN if any(finding.state == BROKEN for finding in findings) else 0
    )


def _read_project(root: Path) -> _Asked:
    """Return the project; wrong manifests are no hindrance to looking at the machine."""
    try:
        project = load_project(root, remember=False)
    except ManifestErrors as error:
        text = (
            f"{counted(len(error.errors), 'error')} in the manifests, the first: {error.errors[0]}"
        )
        return _Asked(
            empty_project(root),
            Finding("project", "manifests", BROKEN, text),
            exit_code=error.exit_code,
        )
    engines = tuple(_engines(project))
    declared = declared_toolchains(project.configs)
    toolchains = [
        locate_toolchain(name, python, env.items(), project.root, os.environ)
        for name, (python, env) in declared.items()
    ]
    text = f"{counted(len(project.models), 'model')}, {counted(len(engines), 'engine')} in {project.root}"
    return _Asked(project, Finding("project", "manifests", OK, text), engines, tuple(toolchains))


def _engines(project: Project) -> Iterator[_Engine]:
    strict = os.environ.get("BUILDSYS_STRICT", "0") not in ("", "0")
    for name, model in project.models.items():
        for engine in model.data["engines"]:
            yield _Engine(
                name=f"{name}:{engine['name']}",
                backend=engine["backend"],
                toolchain=engine["toolchain"],
                required=engine["required"] or strict,
                cuda=engine.get("provider") == "cuda",
            )


def _findings(asked: _Asked) -> Iterator[Finding]:
    within_s = probe_limit_s(os.environ)
    with ThreadPoolExecutor(2) as threads:  # interpreters start while others are asked
        places = threads.map(partial(ask_toolchain, within_s=within_s), asked.toolchains)
        modules = ask_own((*LIBRARIES, *INSTALL), within_s)
        by_name: dict[str | None, Place] = {
            place.toolchain.name: place for place in places if place.toolchain
        }
    by_name[None] = Place(None, modules=modules)
    gpus, told_gpus = look_at_gpus()
    yield look_at_python()
    yield asked.finding
    yield from look_at_libraries(modules)
    yield from tell_backends(by_name[None], gpus, asked.users(None))
    for toolchain in asked.toolchains:
        yield tell_toolchain(by_name[toolchain.name], gpus, asked.users(toolchain.name))
    yield from told_gpus
    yield from look_at_extras()
    project = asked.project
    yield from look_at_folders(project.root, project.configs, project.build, project.state)
    yield from _required(asked, by_name, gpus)


def _required(asked: _Asked, places: dict[str | None, Place], gpus: Gpus) -> Iterator[Finding]:
    """Yield the engines that have to be built and cannot be."""
    for engine in asked.engines:
        ability = places[engine.toolchain].ability(engine.backend, gpus, cuda=engine.cuda)
        if engine.required and ability.problem:
            yield tell_required(engine.name, ability)


def _entry(finding: Finding) -> Entry:
    name = f"{finding.about} {finding.name}" if finding.about != finding.name else finding.name
    details = [f"→ {finding.mend}"] if finding.mend and finding.state != OK else []
    return Entry(finding.state, name, details, remark=finding.text)


def _closing(findings: list[Finding]) -> str:
    broken = sum(finding.state == BROKEN for finding in findings)
    missing = sum(finding.state == MISSING for finding in findings)
    told = [f"{broken} broken"] if broken else ["nothing that this project needs is broken"]
    return "; ".join([*told, *([f"{missing} missing"] if missing else [])])
