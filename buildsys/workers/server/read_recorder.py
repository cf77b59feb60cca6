"""Recorder of everything that user code reads while a stage runs.

An audit hook sees files opened, folders listed and modules imported by Python code. A subclass of
the class of ``os.environ`` sees environment variables: the object stays the same, so that
``from os import environ as env`` and ``dict(os.environ)`` are seen as well.

A read counts if a line of the user's code is on the stack. It is attributed to the innermost one.
Variables count only if that line reads them itself, possibly through the standard library: which
variables a library reads is part of the library, and its version is in the key. Libraries, the
interpreter and the system's own folders are left out for the same reason.

Out of reach are files that a C or Rust library opens by itself, unless Python code looked at them
first (``os.path.isfile``) or they are still mapped when the stage ends, variables read by
``getenv`` in C, and processes other than forks.
"""

from __future__ import annotations

import _collections_abc
import importlib
import json
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

FILE, LISTING, VARIABLE, MODULE = "file", "listing", "variable", "module"
ALL_VARIABLES = "*"
MAX_READS = 5000  # an amount that a report and a check of freshness can bear
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
# a toolchain's interpreter imports this package through a link
_OWN_CODE = tuple(
    {f"{file.parents[2]}{os.sep}" for file in (Path(__file__), Path(__file__).resolve())}
)
_STANDARD = tuple({
    f"{os.path.realpath(folder)}{os.sep}"
    for name in ("stdlib", "platstdlib")
    if (folder := sysconfig.get_path(name))
} | {f"{os.path.dirname(os.__file__)}{os.sep}"})  # fmt: skip # noqa: PTH120
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/")
_CACHES = ("/torchinductor_", "/.triton/", "/.cache/torch/kernels/", "/fontconfig/")
_ACCESS = os.O_WRONLY | os.O_RDWR
# read by functions of the standard library for its own purposes: where a folder is, how to sort
_STANDARD_VARIABLES = re.compile(
    r"HOME|PATH|TMPDIR|TEMP|TMP|USER|LOGNAME|USERNAME|COLUMNS|LINES|TERM|TZ|LANG|LANGUAGE|LC_.*"
    r"|PYTHON.*|NO_COLOR|FORCE_COLOR|.*_PROXY|.*_proxy|XDG_.*"
)
_ENVIRONMENT_CODE = (
    os.__file__,
    _collections_abc.__file__,
    "<frozen os>",
    "<frozen _collections_abc>",
)
_LISTINGS = ("os.listdir", "os.scandir")
_OPENED = ("ctypes.dlopen", "sqlite3.connect")


class Read(NamedTuple):
    """One thing read by a stage."""

    kind: str
    name: str  # absolute path, variable or top-level module
    where: str  # file:line, relative to the project
    # mtime, ctime, size and inode of a file before it was read; None: missing, or written by the
    # stage itself
    stamp: tuple[int, int, int, int] | None = None
    written: bool = False  # by the stage itself, before or after


class ReadRecorder:
    """A record of reads, shared with forked processes through a file without a name."""

    def __init__(self, project: Path, ignored: tuple[str, ...] = ()) -> None:
        """Prepare a recorder. ``ignored`` are folders of the job itself, ending in a slash."""
        self._project = f"{project}{os.sep}"
        self._resolved = f"{os.path.realpath(project)}{os.sep}"
        prefixes = {sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)}
        roots = tuple(f"{prefix}{os.sep}" for prefix in prefixes if len(prefix) > 1)
        # a virtual environment often lies in the project, never the other way round
        libraries = tuple(root for root in roots if not self._project.startswith(root))
        self._ignored = (*_STANDARD, *_SYSTEM, *_OWN_CODE, *libraries, *ignored)
        self._seen: set[tuple[str, str]] = set()
        self._busy = threading.local()  # the recorder's own work is not recorded
        self._on = False
        self._counts = {False: 0, True: 0}  # of reads, of writes
        self._file = os.memfd_create("reads", os.MFD_CLOEXEC)

    def start(self) -> None:
        """Start to record. An audit hook cannot be removed again."""
        sys.addaudithook(self._audit)
        self._replace_functions()
        for mapping in (os.environ, os.environb):
            mapping.__class__ = _recording_class(type(mapping), self._on_variable)
        self._on = True

    def stop(self) -> list[Read]:
        """Stop recording and return all reads, those of forked processes included."""
        self._add_mapped_files()
        self._on = False
        os.lseek(self._file, 0, os.SEEK_SET)
        with open(self._file, "rb", closefd=False) as stream:
            lines = stream.read().splitlines()
        reads: dict[tuple[str, str], Read] = {}
        written: set[str] = set()
        for line in lines:
            with suppress(ValueError, TypeError):  # cut off by the end of a forked process
                kind, name, where, stamp = json.loads(line)
                if kind == "written":
                    written.add(name)
                else:
                    found = Read(kind, name, where, tuple(stamp) if stamp else None)
                    reads.setdefault((kind, name), found)
        return [
            read._replace(written=True) if read.name in written else read for read in reads.values()
        ]

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            if not isinstance(path, int):
                self._on_path(FILE, path, sys._getframe(), writes=_is_write(mode, flags))
        elif event in _LISTINGS:
            if not isinstance(args[0], int):
                self._on_path(LISTING, args[0] or ".", sys._getframe())
        elif event == "import":
            self._on_import(args[0], sys._getframe())
        elif event in _OPENED and args[0]:
            self._on_path(FILE, args[0], sys._getframe())

    def _on_path(self, kind: str, path: object, frame: FrameType, *, writes: bool = False) -> None:
        if not self._on or getattr(self._busy, "yes", False):
            return
        self._busy.yes = True
        try:
            # a path is a str, bytes or os.PathLike, whose code may be the user's
            name = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type] # noqa: PTH100
            if kind is FILE and name.endswith(".pyc"):
                name = _source_of(name)
            key = ("written" if writes else kind, name)
            if key in self._seen or name.startswith(self._ignored):
                return
            if ("written", name) in self._seen:  # a product of the stage itself
                return
            if any(folder in name for folder in _CACHES) or _in_library(name):
                return
            line = self._user_line(frame, skip_import=kind is LISTING)
            if not line:
                return
            self._seen.add(key)
            stamp = None
            if kind is FILE and not writes:
                with suppress(OSError, ValueError):
                    found = os.stat(name)  # noqa: PTH116
                    inode = found.st_ino & 0x7FFF_FFFF_FFFF_FFFF
                    stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_size, inode
            self._write(key[0], name, line, stamp)
        except (TypeError, ValueError, OSError, RecursionError):
            pass  # whatever cannot be a path fails in the stage itself
        finally:
            self._busy.yes = False

    def _on_variable(self, name: str, frame: FrameType | None) -> None:
        key = (VARIABLE, name)
        if not self._on or key in self._seen:
            return
        line = self._user_line(frame, direct=True)
        if line and not (_STANDARD_VARIABLES.fullmatch(name) and _is_indirect(frame)):
            self._seen.add(key)
            self._write(VARIABLE, name, line, None)

    def _on_import(self, name: object, frame: FrameType | None) -> None:
        if not self._on or not isinstance(name, str) or name[:1] == ".":
            return
        key = (MODULE, top := name.partition(".")[0])
        if key in self._seen or top in sys.stdlib_module_names or top == "buildsys":
            return
        line = self._user_line(frame, direct=True)
        if line:
            self._seen.add(key)
            self._write(MODULE, top, line, None)

    def _write(self, kind: str, name: str, where: str, stamp: object) -> None:
        self._counts[kind == "written"] += 1
        # one read too many is enough; forgotten writes only make a file look changed
        if self._counts[False] <= MAX_READS + 1 and self._counts[True] <= 10 * MAX_READS:
            os.write(self._file, json.dumps((kind, name, where, stamp)).encode() + b"\n")

    def _user_line(
        self, frame: FrameType | None, *, direct: bool = False, skip_import: bool = False
    ) -> str:
        """Return ``file:line`` of the innermost frame in user code, "" without one.

        ``direct``: only the standard library may be in between. ``skip_import``: not on behalf of
        the import system, which lists every folder of the module path.
        """
        first = True
        while frame is not None:
            file = frame.f_code.co_filename
            if file[:1] == "<":  # frozen modules of the import system; exec; generated code
                if skip_import and first and file.startswith("<frozen importlib"):
                    return ""
            elif file.startswith(_OWN_CODE) or _in_library(file):
                if direct and file != __file__:
                    return ""
            elif not file.startswith(_STANDARD):
                for root in (self._project, self._resolved):
                    file = file.removeprefix(root)
                return f"{file}:{frame.f_lineno}"
            first = first and file == __file__
            frame = frame.f_back
        return ""

    def _replace_functions(self) -> None:
        """See functions without an audit event: ``os.stat`` and imports of loaded modules.

        Whoever asks for a file's existence depends on it, and libraries that open files in C or
        Rust look at them first.
        """
        real_stat, real_import = os.stat, importlib.import_module

        def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
            if self._on and not isinstance(path, int) and options.get("dir_fd") is None:
                self._on_stat(path, sys._getframe(1), real_stat)
            return real_stat(path, *args, **options)

        def import_module(name: str, package: str | None = None) -> Any:
            self._on_import(name, sys._getframe(1))
            return real_import(name, package)

        os.stat = stat
        importlib.import_module = import_module

    def _on_stat(self, path: Any, frame: FrameType, real_stat: Any) -> None:
        if getattr(self._busy, "yes", False):
            return
        is_folder = False
        with suppress(OSError, ValueError, TypeError):
            is_folder = real_stat(path).st_mode & 0o170000 == 0o040000
        if not is_folder:  # of a folder, only its existence is asked for; listings are seen
            self._on_path(FILE, path, frame)

    def _add_mapped_files(self) -> None:
        """Add files still mapped, such as weights opened by a library in C or Rust."""
        with suppress(OSError, ValueError):
            with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as stream:  # noqa: PTH123
                names = {line.rstrip("\n").partition("/")[2] for line in stream}
            for name in sorted(filter(None, names)):
                path = f"/{name}"
                key = (FILE, path)
                known = key in self._seen or ("written", path) in self._seen
                if known or path.startswith(self._ignored) or _in_library(path):
                    continue
                if path.endswith(" (deleted)") or not path.startswith(
                    (self._project, self._resolved)
                ):
                    continue
                found = os.stat(path)  # noqa: PTH116
                stamp = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
                self._seen.add(key)
                self._write(FILE, path, "", stamp)


def _recording_class(base: type, on_variable: Any) -> type:
    """Return a subclass of the class of ``os.environ`` reporting what is read."""

    class _Environ(base):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            on_variable(os.fsdecode(key) if isinstance(key, (str, bytes)) else "", sys._getframe(1))
            return super().__getitem__(key)

        def __iter__(self) -> Iterator[Any]:
            on_variable(ALL_VARIABLES, sys._getframe(1))
            return iter(super().__iter__())

        def __len__(self) -> int:
            on_variable(ALL_VARIABLES, sys._getframe(1))
            return int(super().__len__())

    return _Environ


def _is_indirect(frame: FrameType | None) -> bool:
    """Return True if the standard library reads a variable, not only ``os``."""
    while frame is not None and frame.f_code.co_filename in (*_ENVIRONMENT_CODE, __file__):
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    return file.startswith((*_STANDARD, "<frozen"))


def _is_write(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax")  # r+ reads what is there
    if not isinstance(flags, int):
        return False
    new = flags & os.O_TRUNC or (flags & os.O_CREAT and flags & os.O_EXCL)
    return bool(new) or flags & _ACCESS == os.O_WRONLY


def _in_library(path: str) -> bool:
    return any(f"/{folder}/" in path for folder in _LIBRARY_FOLDERS)


def _source_of(path: str) -> str:
    """Return the source of a bytecode file."""
    from importlib.util import source_from_cache

    try:
        return source_from_cache(path)
    except ValueError:
        return path


def reads_to_json(reads: list[Read]) -> list[list[object]]:
    """Return reads as JSON values."""
    return [list(read) for read in reads]
