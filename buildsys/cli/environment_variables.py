"""Environment variables of buildsys: one table for checks and documentation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import BuildsysError, UsageError
from buildsys.execution.key_parts import LABELS
from buildsys.project.load import empty_project
from buildsys.system.printable import nearest
from buildsys.system.units import number_or_text, parse_duration, parse_size

PREFIX = "BUILDSYS_"
FOLDER, PLACE, SWITCH, SIZE, DURATION = "folder", "folder or URL", "`0` or `1`", "size", "duration"


class Variable(NamedTuple):
    """A variable and its form; an empty value counts as unset."""

    name: str
    form: str
    meaning: str


TOOLCHAIN = Variable(
    "BUILDSYS_TOOLCHAIN_NAME",
    "Python interpreter",
    "interpreter of the toolchain NAME, instead of `python` in `configs/project.yaml`",
)
VARIABLES = (
    Variable("BUILDSYS_BUILD", FOLDER, "build folder instead of `build`"),
    Variable("BUILDSYS_CONFIGS", FOLDER, "manifest folder instead of `configs`"),
    Variable("BUILDSYS_HISTORY", "file", "history of builds instead of `.buildsys/history.db`"),
    Variable(
        "BUILDSYS_INTERPRETER_LIMIT",
        DURATION,
        "time limit for an interpreter or library to start; 30 s by default",
    ),
    Variable(
        LABELS, "names", "labels of this machine, separated by commas, for `needs` of manifests"
    ),
    Variable(
        "BUILDSYS_MACHINE_LOCK",
        FOLDER,
        "locks of the GPUs and of benchmarks on the CPU, shared by the projects of a user; by "
        "default `buildsys-UID` in the temporary folder",
    ),
    Variable("BUILDSYS_REMOTE", PLACE, "place of the shared cache; an empty value disables it"),
    Variable(
        "BUILDSYS_SIGNING_KEY",
        "file or PEM text",
        "private key that signs engines and shared results instead of `cache.signing_key`",
    ),
    Variable("BUILDSYS_STORE", FOLDER, "store instead of `.buildsys/store`"),
    Variable(
        "BUILDSYS_STORE_LIMIT",
        SIZE,
        "size limit of the store instead of `store.limit`; `0` means no limit",
    ),
    Variable(
        "BUILDSYS_STRICT",
        SWITCH,
        "with `1`, an unavailable target fails, as if every engine were `required`",
    ),
    Variable(
        "BUILDSYS_TIMING_CACHES",
        FOLDER,
        "timing caches of TensorRT instead of `.buildsys/timing_caches`",
    ),
    TOOLCHAIN,
    Variable(
        "BUILDSYS_WORKER_IDLE",
        DURATION,
        "lifetime of a worker server without work; 5 min by default, `0` ends it with its run",
    ),
)
_OF_TESTS = ("BUILDSYS_GPU_", "BUILDSYS_KILL", "BUILDSYS_LONG_TESTS", "BUILDSYS_TEST_")


def check_variables(root: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Check the variables of buildsys before anything runs.

    A misspelled one would otherwise be ignored in silence.
    Raises: UsageError: an unknown variable, or a malformed value.
    """
    forms = {variable.name: variable.form for variable in VARIABLES if variable is not TOOLCHAIN}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name.startswith(_OF_TESTS):
            continue
        if name in forms:
            if value := environment[name].strip():
                _check(name, forms[name], value, root)
            continue
        from buildsys.system.toolchains import override_variable  # rarely needed

        overrides = [override_variable(toolchain) for toolchain in _toolchains(root)]
        if name not in overrides:
            names = [variable.removeprefix(PREFIX) for variable in (*forms, *overrides)]
            near = nearest(name.removeprefix(PREFIX), names)
            listed = ", ".join(PREFIX + variable for variable in near or names)
            hint = f"{'nearest' if near else 'known'}: {listed}"
            raise UsageError(f"there is no environment variable {name}", hint)


def _check(name: str, form: str, value: str, root: Path) -> None:
    if form == FOLDER or (form == PLACE and ":/" not in value):
        path = root / value
        if path.exists() and not path.is_dir():
            raise UsageError(f"{name}={value} is not a folder", "name a folder, or unset it")
    elif form == PLACE and not all(value.partition("://")):
        raise UsageError(f"{name} is not a URL", "write a folder, or SCHEME://PLACE")
    elif form == SWITCH and value not in ("0", "1"):
        raise UsageError(f"{name}={value} is neither 0 nor 1", "write 1, or unset it")
    elif form in (SIZE, DURATION):
        parse = parse_size if form == SIZE else parse_duration
        try:
            parse(number_or_text(value))
        except ValueError as error:
            raise UsageError(f"{name}: {error}") from None


def _toolchains(root: Path) -> Iterable[str]:
    try:
        return list(empty_project(root).toolchains())
    except (BuildsysError, AttributeError, KeyError, TypeError):  # the load reports it
        return ()
