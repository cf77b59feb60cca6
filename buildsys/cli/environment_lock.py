"""The recorded environment of a project, ``buildsys.lock``, and differences from it."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from buildsys import __version__
from buildsys.errors import UsageError
from buildsys.report.formatting import first_names
from buildsys.system.devices import device_facts
from buildsys.system.files import read_limited
from buildsys.system.interpreters.interpreter import check_interpreter
from buildsys.system.interpreters.toolchain import Toolchain
from buildsys.system.versions import ENVIRONMENT, environment_facts, installed_versions

SCHEMA = "buildsys/lock/1"
FILE = "buildsys.lock"
_MAX_BYTES = 4 << 20
_DEVICES = ("cpu", "cores", "gpu")
_SHOWN = 8  # packages
_OURS = "buildsys"  # with its version, not among the packages


@dataclass(frozen=True)
class LockedToolchain:
    """An interpreter with its packages."""

    python: str
    packages: Mapping[str, str]


@dataclass(frozen=True)
class Environment:
    """Software, variables and devices with an effect on results."""

    python: str
    platform: str
    buildsys: str
    packages: Mapping[str, str] = field(default_factory=dict)  # name -> version
    toolchains: Mapping[str, LockedToolchain] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the environment as the content of a lock file."""
        return {"schema": SCHEMA, **asdict(self)}


class Difference(NamedTuple):
    """One difference from the lock file."""

    name: str  # numpy, trt86/tensorrt, python, gpu.driver
    text: str
    remedy: str = ""
    is_software: bool = True  # not a device, nor a package besides the locked ones


def current_environment(toolchains: Iterable[Toolchain]) -> tuple[Environment, list[str]]:
    """Return the present environment, and sentences on unusable toolchains."""
    found, problems = {}, []
    for toolchain in toolchains:
        check = check_interpreter(toolchain)
        if check.interpreter is None or check.problem:
            problems.append(check.problem)
            continue
        python = f"{check.interpreter.implementation} {check.interpreter.version}"
        found[toolchain.name] = LockedToolchain(python, _packages(check.interpreter.path))
    libc = " ".join(filter(None, platform.libc_ver()))
    environment = Environment(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        platform=", ".join(filter(None, (f"{platform.system()} {platform.machine()}", libc))),
        buildsys=__version__,
        packages=_packages(tuple(sys.path)),
        toolchains=dict(sorted(found.items())),
        variables=dict(sorted(environment_facts(ENVIRONMENT, os.environ).items())),
        devices=device_facts(_DEVICES),
    )
    return environment, problems


def read_lock(file: Path) -> Environment | None:
    """Return the environment in a lock file, None without a file.

    Raises: UsageError: it is damaged, or of a newer buildsys.
    """
    try:
        content = read_limited(file, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(file, getattr(error, "strerror", None) or str(error)) from None
    try:
        stored = json.loads(content)
        schema = stored.pop("schema")
        if schema != SCHEMA:
            raise _unreadable(file, f"its schema is {schema!r}, not {SCHEMA!r}")
        toolchains = stored.pop("toolchains").items()
        locked = {name: LockedToolchain(**one) for name, one in toolchains}
        environment = Environment(**stored, toolchains=locked)
        _check(environment)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise _unreadable(file, "it is not a lock file") from None
    return environment


def differences(locked: Environment, now: Environment) -> Iterator[Difference]:
    """Yield the differences of the present environment from the locked one."""
    for name in ("python", "platform", "buildsys"):
        before, after = getattr(locked, name), getattr(now, name)
        if before != after:
            remedy = f"pip install {quote(f'buildsys=={before}')}" if name == _OURS else ""
            yield Difference(name, f"is {after}, locked was {before}", remedy)
    pip = f"{sys.executable} -m pip install"
    yield from _package_differences("", locked.packages, now.packages, pip)
    for name, toolchain in locked.toolchains.items():
        present = now.toolchains.get(name)
        if present is None:
            yield Difference(name, "is locked as a toolchain, and missing or unusable here")
            continue
        if present.python != toolchain.python:
            text = f"is {present.python}, locked was {toolchain.python}"
            yield Difference(f"{name}/python", text)
        yield from _package_differences(f"{name}/", toolchain.packages, present.packages)
    for name in now.toolchains.keys() - locked.toolchains.keys():
        yield Difference(name, "is a toolchain, and not locked", is_software=False)
    for name in sorted(locked.variables.keys() | now.variables.keys()):
        set_before, set_now = locked.variables.get(name), now.variables.get(name)
        if set_before != set_now:
            changed = f"export {quote(name)}={quote(set_before or '')}"
            remedy = f"unset {quote(name)}" if set_before is None else changed
            text = f"is {_value(set_now)}, locked was {_value(set_before)}"
            yield Difference(name, text, remedy)
    for name in sorted(locked.devices.keys() | now.devices.keys()):
        was, found = locked.devices.get(name, "unknown"), now.devices.get(name, "unknown")
        if was != found:
            yield Difference(name, f"is {found}, locked was {was}", is_software=False)


def _package_differences(
    prefix: str, locked: Mapping[str, str], now: Mapping[str, str], pip: str = ""
) -> Iterator[Difference]:
    """Yield changed and missing packages, and one sentence on all others."""
    for name, version in sorted(locked.items()):
        found = now.get(name)
        if found != version:
            remedy = f"{pip} {quote(f'{name}=={version}')}" if pip else ""
            state = "is not installed" if found is None else f"is {found}"
            yield Difference(f"{prefix}{name}", f"{state}, locked was {version}", remedy)
    others = sorted(now.keys() - locked.keys())
    if others:
        text = f"without a locked version: {first_names(others, _SHOWN)}"
        yield Difference(f"{prefix}packages", text, is_software=False)


def _packages(path: tuple[str, ...]) -> dict[str, str]:
    found = installed_versions(path)
    return {name: version for name, version in sorted(found.items()) if name != _OURS}


def _value(text: str | None) -> str:
    return "not set" if text is None else repr(text)


def _check(environment: Environment) -> None:
    """Raise TypeError unless all values are texts, or maps of texts."""
    maps = [one.packages for one in environment.toolchains.values()]
    for one in fields(Environment):
        value = getattr(environment, one.name)
        if one.name in ("packages", "variables", "devices"):
            maps.append(value)
        elif one.name != "toolchains" and not isinstance(value, str):
            raise TypeError(one.name)
    maps.append({name: one.python for name, one in environment.toolchains.items()})
    if not all(isinstance(text, str) for texts in maps for pair in texts.items() for text in pair):
        raise TypeError("maps")


def _unreadable(file: Path, problem: str) -> UsageError:
    hint = "write it again with `buildsys lock`, or get it from version control"
    return UsageError(f"cannot read {file.name}: {problem}", hint)
