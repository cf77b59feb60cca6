"""What ``doit doctor`` tells of Python, of the libraries that are installed, and of the extras that are not."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import buildsys
from buildsys.cli.doctor.finding import BROKEN, MISSING, OK, Finding
from buildsys.cli.repro.two_builds import child_environment
from buildsys.system.interpreters.probe import Library, check_libraries
from buildsys.system.versions import installed_versions, normalized

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_DEVELOPMENT = ("test",)
LIBRARIES = (
    "torch",
    "torchvision",
    "numpy",
    "onnx",
    "onnxscript",
    "onnxsim",
    "ml_dtypes",
)  # that must load


def look_at_python() -> Finding:
    """Return which Python and which buildsys this is."""
    version, place = platform.python_version(), Path(buildsys.__file__).resolve().parent
    text = f"{platform.python_implementation()} {version}, {sys.executable}; buildsys {buildsys.__version__} in {place}"
    facts = {
        "version": version,
        "executable": sys.executable,
        "buildsys": buildsys.__version__,
        "folder": str(place),
    }
    return Finding("python", "python", OK, text, facts=facts)


def ask_own(names: Sequence[str], within_s: float) -> dict[str, Library]:
    """Return what became of importing modules in the interpreter of this process, each in a process of its own."""
    return check_libraries(Path(sys.executable), names, child_environment(), within_s)


def look_at_libraries(asked: Mapping[str, Library]) -> Iterator[Finding]:
    """Yield whether the libraries that every project needs load."""
    for name in LIBRARIES:
        module = asked[name]
        if module.is_usable:
            yield Finding("library", name, OK, module.version, facts=dict(module.facts or {}))
        else:
            text = "is not installed" if module.missing else f"does not load: {module.problem}"
            again = "" if module.missing else "--force-reinstall "
            yield Finding(
                "library", name, BROKEN, text, f"{sys.executable} -m pip install {again}{name}"
            )


def look_at_extras() -> Iterator[Finding]:
    """Yield the optional parts and whether all that they need is installed."""
    installed = installed_versions()
    for extra, requirements in _extras().items():
        names = [
            normalized(match[1]) for line in requirements if (match := _REQUIREMENT.match(line))
        ]
        lacking = [name for name in names if name not in installed]
        told = ", ".join(f"{name} {installed[name]}" for name in names if name in installed)
        facts = {
            "installed": {name: installed[name] for name in names if name in installed},
            "missing": lacking,
        }
        if lacking:
            text = f"{' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed"
            yield Finding("extra", extra, MISSING, text, f"pip install 'buildsys[{extra}]'", facts)
        else:
            yield Finding("extra", extra, OK, told, facts=facts)


def _extras() -> dict[str, list[str]]:
    """Return extra -> requirements, as the installed package or the project file of a clone states them."""
    from importlib import metadata

    try:
        lines = metadata.requires("buildsys") or []
    except metadata.PackageNotFoundError:
        return _declared_extras(Path(buildsys.__file__).resolve().parent.parent / "pyproject.toml")
    found: dict[str, list[str]] = {}
    for line in lines:
        named = _EXTRA.search(line)
        if named is not None and named[1] not in _DEVELOPMENT:
            found.setdefault(named[1], []).append(line.partition(";")[0])
    return found


def _declared_extras(file: Path) -> dict[str, list[str]]:
    try:
        reader = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
        declared = reader.loads(file.read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
    except (ImportError, OSError, ValueError, KeyError):
        return {}
    return {extra: list(lines) for extra, lines in declared.items() if extra not in _DEVELOPMENT}
