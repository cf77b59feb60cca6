"""Environment variables of buildsys: their names and forms, checked before anything runs.

docs/commands.md says what they mean.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from buildsys.errors import BuildsysError, UsageError
from buildsys.execution.key_parts import LABELS
from buildsys.project.load import empty_project
from buildsys.system.printable import nearest
from buildsys.system.units import number_or_text, parse_duration, parse_size

PREFIX = "BUILDSYS_"
FOLDER, PLACE, SWITCH, SIZE, DURATION = "folder", "folder or URL", "`0` or `1`", "size", "duration"
TOOLCHAIN = "BUILDSYS_TOOLCHAIN_NAME"  # one per toolchain of the project
FORMS = {
    "BUILDSYS_BUILD": FOLDER,
    "BUILDSYS_CONFIGS": FOLDER,
    "BUILDSYS_HISTORY": "file",
    "BUILDSYS_INTERPRETER_LIMIT": DURATION,
    LABELS: "names",
    "BUILDSYS_MACHINE_LOCK": FOLDER,
    "BUILDSYS_REMOTE": PLACE,
    "BUILDSYS_SIGNING_KEY": "file or PEM text",
    "BUILDSYS_STORE": FOLDER,
    "BUILDSYS_STORE_LIMIT": SIZE,
    "BUILDSYS_STRICT": SWITCH,
    "BUILDSYS_TIMING_CACHES": FOLDER,
    "BUILDSYS_TRIALS": SWITCH,
    TOOLCHAIN: "Python interpreter",
    "BUILDSYS_WORKER_IDLE": DURATION,
}
_OF_TESTS = ("BUILDSYS_GPU_", "BUILDSYS_KILL", "BUILDSYS_LONG_TESTS", "BUILDSYS_TEST_")


def check_variables(root: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Check the variables of buildsys; an empty value counts as unset.

    Raises: UsageError: an unknown variable, which would be ignored, or a malformed value.
    """
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name.startswith(_OF_TESTS):
            continue
        if name in FORMS and name != TOOLCHAIN:
            if value := environment[name].strip():
                _check(name, FORMS[name], value, root)
            continue
        from buildsys.system.toolchains import override_variable  # rarely needed

        overrides = [override_variable(toolchain) for toolchain in _toolchains(root)]
        if name not in overrides:
            names = [variable.removeprefix(PREFIX) for variable in (*FORMS, *overrides)]
            near = nearest(name.removeprefix(PREFIX), names)
            listed = ", ".join(PREFIX + variable for variable in near or names)
            hint = f"{'nearest' if near else 'known'}: {listed}"
            raise UsageError(f"there is no environment variable {name}", hint)


def _check(name: str, form: str, value: str, root: Path) -> None:
    if form == FOLDER or (form == PLACE and ":/" not in value):
        if (root / value).exists() and not (root / value).is_dir():
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
