"""Environment variables of buildsys: one table for checks and documentation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import BuildsysError, UsageError
from buildsys.execution.key_parts import LABELS
from buildsys.project.load import empty_project
from buildsys.system.suggestions import nearest
from buildsys.system.units import number_or_text, parse_size

PREFIX = "BUILDSYS_"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # as the names of manifests
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")  # a URL's scheme, also with a single slash


class Variable(NamedTuple):
    """A variable and its form; an empty value counts as unset."""

    name: str
    form: str
    meaning: str
    # (project folder, environment); raises UsageError for a malformed value
    check: Callable[[Path, Mapping[str, str], str], None]


def _check_folder(root: Path, environment: Mapping[str, str], name: str) -> None:
    path = root / environment[name]
    if path.exists() and not path.is_dir():
        raise UsageError(
            f"{name}={environment[name]} is not a folder", "name a folder, or unset it"
        )


def _check_file(root: Path, environment: Mapping[str, str], name: str) -> None:
    if (root / environment[name]).is_dir():
        raise UsageError(f"{name}={environment[name]} is a folder", "name a file, or unset it")


def _check_key(root: Path, environment: Mapping[str, str], name: str) -> None:
    if not environment[name].lstrip().startswith("-----BEGIN "):
        _check_file(root, environment, name)


def _check_url(root: Path, environment: Mapping[str, str], name: str) -> None:
    text = environment[name]
    if "://" not in text and not _SCHEME.match(text):
        _check_folder(root, environment, name)
    elif not all(text.partition("://")):
        raise UsageError(f"{name} is not a URL", "write a folder, or SCHEME://PLACE")


def _check_strict(_: Path, environment: Mapping[str, str], name: str) -> None:
    if environment[name] not in ("0", "1"):
        raise UsageError(f"{name}={environment[name]} is neither 0 nor 1", "write 1, or unset it")


def _check_idle(_: Path, environment: Mapping[str, str], name: str) -> None:
    del name
    from buildsys.workers.registry import idle_limit_s  # rarely needed

    idle_limit_s(environment)


def _check_size(_: Path, environment: Mapping[str, str], name: str) -> None:
    try:
        parse_size(number_or_text(environment[name].strip()))
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None


def _check_probe_limit(_: Path, environment: Mapping[str, str], name: str) -> None:
    del name
    from buildsys.system.interpreter_probe import probe_limit_s  # rarely needed

    probe_limit_s(environment)


def _check_labels(_: Path, environment: Mapping[str, str], name: str) -> None:
    for label in environment[name].split(","):
        if label.strip() and not _LABEL.fullmatch(label.strip()):
            hint = "write names such as trt86,lab, separated by commas"
            raise UsageError(f"{name}: {label.strip()} is not a label", hint)


def _accept(_: Path, environment: Mapping[str, str], name: str) -> None:
    """Accept any value: a missing interpreter makes its engines unavailable."""
    del environment, name


TOOLCHAIN = Variable(
    "BUILDSYS_TOOLCHAIN_NAME",
    "Python interpreter",
    "interpreter of the toolchain NAME, instead of `python` in `configs/project.yaml`",
    _accept,
)
VARIABLES = (
    Variable("BUILDSYS_BUILD", "folder", "build folder instead of `build`", _check_folder),
    Variable("BUILDSYS_CONFIGS", "folder", "manifest folder instead of `configs`", _check_folder),
    Variable(
        "BUILDSYS_HISTORY",
        "file",
        "history of builds instead of `.buildsys/history.db`",
        _check_file,
    ),
    Variable(
        "BUILDSYS_INTERPRETER_LIMIT",
        "duration",
        "time limit for an interpreter or library to start; 30 s by default",
        _check_probe_limit,
    ),
    Variable(
        LABELS,
        "names",
        "labels of this machine, separated by commas, for `needs` of manifests",
        _check_labels,
    ),
    Variable(
        "BUILDSYS_MACHINE_LOCK",
        "folder",
        "locks of the GPUs and of benchmarks on the CPU, shared by the projects of a user; by "
        "default `buildsys-UID` in the temporary folder",
        _check_folder,
    ),
    Variable(
        "BUILDSYS_REMOTE",
        "folder or URL",
        "place of the shared cache; an empty value disables it",
        _check_url,
    ),
    Variable(
        "BUILDSYS_SIGNING_KEY",
        "file or PEM text",
        "private key that signs engines and shared results instead of `cache.signing_key`",
        _check_key,
    ),
    Variable("BUILDSYS_STORE", "folder", "store instead of `.buildsys/store`", _check_folder),
    Variable(
        "BUILDSYS_STORE_LIMIT",
        "size",
        "size limit of the store instead of `store.limit`; `0` means no limit",
        _check_size,
    ),
    Variable(
        "BUILDSYS_STRICT",
        "`0` or `1`",
        "with `1`, an unavailable target fails, as if every engine were `required`",
        _check_strict,
    ),
    Variable(
        "BUILDSYS_TIMING_CACHES",
        "folder",
        "timing caches of TensorRT instead of `.buildsys/timing_caches`",
        _check_folder,
    ),
    TOOLCHAIN,
    Variable(
        "BUILDSYS_WORKER_IDLE",
        "duration",
        "lifetime of a worker server without work; 5 min by default, `0` ends it with its run",
        _check_idle,
    ),
)
_OF_TESTS = ("BUILDSYS_GPU_", "BUILDSYS_KILL", "BUILDSYS_LONG_TESTS", "BUILDSYS_TEST_")


def check_variables(root: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Check the variables of buildsys before anything runs.

    A misspelled one would otherwise be ignored in silence.
    Raises: UsageError: an unknown variable, or a malformed value.
    """
    known = {variable.name: variable for variable in VARIABLES if variable is not TOOLCHAIN}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name.startswith(_OF_TESTS):
            continue
        if name in known:
            if environment[name].strip():
                known[name].check(root, environment, name)
            continue
        from buildsys.system.toolchains import override_variable  # rarely needed

        overrides = [override_variable(toolchain) for toolchain in _toolchains(root)]
        if name not in overrides:
            names = [one.removeprefix(PREFIX) for one in (*known, *overrides)]
            near = nearest(name.removeprefix(PREFIX), names)
            listed = ", ".join(PREFIX + one for one in near or names)
            hint = f"{'nearest' if near else 'known'}: {listed}"
            raise UsageError(f"there is no environment variable {name}", hint)


def _toolchains(root: Path) -> Iterable[str]:
    try:
        return list(empty_project(root).toolchains())
    except (BuildsysError, AttributeError, KeyError, TypeError):  # the load reports it
        return ()
