"""What makes a server that runs already as good as a new one: everything that it was started from, as one digest.

Not seen is an edit deep inside an installed library that leaves its folder's list, its version and its
``__init__.py`` as they were; ``doit workers --stop`` is for those who do that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import buildsys
from buildsys.system.files import Stamp, stamp
from buildsys.system.interpreters.interpreter import Interpreter
from buildsys.workers.server_kinds import Profile

_SCHEMA = "buildsys/server/1"
_STATUS = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "CapEff",
    "NoNewPrivs",
    "Seccomp",
    "Cpus_allowed_list",
    "Mems_allowed_list",
)
_SYSTEM_FILES = ("/proc/sys/kernel/random/boot_id", "/proc/self/cgroup", "/proc/self/oom_score_adj")
_LIBRARY_CACHE = "/etc/ld.so.cache"  # rewritten when a system library or the driver is installed


def _standard(library: str) -> frozenset[str]:
    """Return the folders that come and go with an interpreter."""
    return frozenset((library, f"{library}/lib-dynload"))


_STANDARD = _standard(str(Path(os.__file__).parent))


def fingerprint(
    profile: Profile,
    *,
    python: str,
    environment: Mapping[str, str],
    folder: Path,
    identity: Interpreter | None = None,
) -> str:
    """Return a sha256 over all that a server of this kind, started now by this process, would depend on.

    ``folder`` is the project's folder of worker logs: each project has servers of its own. ``identity`` says what
    ``python`` is where that is not the interpreter of this process.
    """
    version = sys.version if identity is None else identity.full_version
    standard = _STANDARD if identity is None else _standard(identity.standard)
    entries = _module_folders(environment, folder, sys.path if identity is None else identity.path)
    parts = {
        "schema": _SCHEMA,
        "profile": [profile.name, profile.preload, profile.without],
        # a virtual environment has the same one under several names
        "python": [str(Path(python).parent), os.path.realpath(python), version, stamp(python)],
        "folder": [str(folder), _mark(folder)],
        "code": _own_code(),
        "modules": {entry: list(_modules(entry, standard)) for entry in entries},
        "libraries": stamp(_LIBRARY_CACHE),
        "environment": sorted(environment.items()),
        "process": _process(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def server_modules() -> list[Path]:
    """Return the files of this package that a server has in memory when it forks."""
    package = Path(buildsys.__file__).parent
    loaded = (*package.glob("system/**/*.py"), *package.glob("workers/**/*.py"))
    return [package / "__init__.py", package / "errors.py", *sorted(loaded)]


def _own_code() -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in server_modules()]


def _module_folders(environment: Mapping[str, str], folder: Path, path: Sequence[str]) -> list[str]:
    """Return where a server looks for modules: not where this process has in addition because of how it was called."""
    ours = {
        "",
        str(Path.cwd()),
        str(folder.parent.parent),
        str(Path(sys.argv[0]).absolute().parent),
    }
    named = environment.get("PYTHONPATH", "").split(os.pathsep)
    return list(
        dict.fromkeys([*filter(None, named), *(entry for entry in path if entry not in ours)])
    )


def _modules(entry: str, standard: frozenset[str]) -> Iterator[tuple[str, Stamp | None]]:
    """Yield what can be imported from a folder; a package by its ``__init__.py``, a release by its list of files."""
    if entry in standard:
        yield entry, stamp(entry)
        return
    try:
        with os.scandir(entry) as found:
            names = sorted(item.name for item in found)
    except OSError:  # an archive, or nothing at all
        yield entry, stamp(entry)
        return
    for name in names:
        path = f"{entry}/{name}"
        if name.endswith((".py", ".so", ".pth")):
            yield name, stamp(path)
        elif name.endswith(".dist-info"):
            yield name, stamp(f"{path}/RECORD")
        elif "." not in name and name != "__pycache__":
            module = stamp(f"{path}/__init__.py")
            if module is not None:
                yield name, module


def _process() -> dict[str, Any]:
    """Return what a child inherits besides its environment variables."""
    status = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    limits = sorted(name for name in vars(resource) if name.startswith("RLIMIT_"))
    spaces = sorted(os.listdir("/proc/self/ns"))  # noqa: PTH208 - no path is wanted
    return {
        "status": {name: status.get(name) for name in _STATUS},
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "scheduling": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)],
        "files": [
            Path(path).read_text() if Path(path).exists() else None for path in _SYSTEM_FILES
        ],
        "spaces": [str(Path("/proc/self/ns", name).readlink()) for name in spaces],
        "root": [str(Path("/proc/self/root").readlink()), _identity(Path("/"))],
    }


def _mark(folder: Path) -> str:
    """Return what tells a folder from an earlier one of that name, whose inode it may have."""
    file = folder / ".mark"
    if not file.exists():
        fresh = folder / f".mark.{os.getpid()}"
        fresh.write_text(os.urandom(16).hex())
        with contextlib.suppress(FileExistsError):  # another run was faster
            file.hardlink_to(fresh)
        fresh.unlink()
    return file.read_text()


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
