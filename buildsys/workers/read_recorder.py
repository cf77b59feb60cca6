"""Recorder of all reads of user code during a stage.

An audit hook sees files opened, folders listed and modules imported by Python code. A subclass of
the class of ``os.environ`` sees environment variables: the object stays the same, so that
``from os import environ as env`` and ``dict(os.environ)`` are seen as well.

A read counts if a line of the user's code is on the stack; it is attributed to the innermost one.
In threads that a library starts, where no line is on the stack, reads inside the project count.
Libraries, the interpreter and the system's own folders are left out: their files are in the key.

Out of reach are files that a C or Rust library opens by itself, unless Python code looked at them
first (``os.path.isfile``) or they are still mapped when the stage ends, variables read by
``getenv`` in C or when a preloaded library was imported, and processes other than forks.
"""

import _collections_abc
import importlib
import json
import os
import pathlib
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib.util import source_from_cache
from pathlib import Path
from stat import S_ISDIR
from types import CodeType, FrameType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from buildsys.system.code_kinds import (
    GENERATED,
    NEUTRAL,
    OURS,
    OWN_CODE,
    STANDARD,
    USER,
    code_kind,
    display_name,
)
from buildsys.system.files import Stamp, in_library, listing_digest, stamp
from buildsys.workers.job import MAX_READS

FILE, LISTING, VARIABLE, MODULE = "file", "listing", "variable", "module"
ALL_VARIABLES = "*"
_WRITTEN = "written"  # by the stage itself
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/")
_MEMORY = "/dev/shm/"  # noqa: S108 (no devices, but data for fast reading)
# read by functions of libraries for their own purposes: where a folder is, how to sort
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
# they list every folder of the module path, e.g. for the version of a library
_MODULE_PATH_CODE = ("<frozen importlib", str(Path(importlib.__file__).parent / "metadata"))
_METADATA = (".egg-info/", ".dist-info/")
# audit event -> position of the path that it makes or removes
_MADE = {"os.remove": 0, "os.rename": 1, "os.rmdir": 0}


class Read(NamedTuple):
    """One thing read by a stage."""

    kind: str
    name: str  # absolute path, variable or top-level module
    where: str  # file:line, relative to the project; "" if no line of the user's reads it itself
    # before the read: stamp of a file, digest of a listing; None: missing
    before: Stamp | str | None = None
    written: bool = False  # a file, or in a folder, that the stage itself writes


class ReadRecorder:
    """A record of reads, shared with forked processes by an unnamed file."""

    def __init__(self, project: Path, ignored: tuple[str, ...] = ()) -> None:
        """Prepare a recorder. ``ignored`` are folders of the job itself, ending in a slash."""
        self._roots = tuple({f"{project}{os.sep}", f"{os.path.realpath(project)}{os.sep}"})
        prefixes = {sys.prefix, sys.base_prefix, os.path.realpath(sys.prefix)}
        installed = tuple(f"{prefix}{os.sep}" for prefix in prefixes if len(prefix) > 1)
        # a virtual environment is often inside the project, sometimes the project inside a prefix
        inside = tuple(prefix for prefix in installed if prefix.startswith(self._roots))
        self._ignored = (*STANDARD, *OWN_CODE, *inside, *ignored)
        self._installed = tuple(installed)
        self._seen: set[tuple[str, str]] = set()
        self._callers = Callers(project, __file__)
        self._copying: set[CodeType] = set()  # code of libraries that reads all variables
        self._products: set[str] = set()  # files that the stage itself made
        self._temporary = f"{tempfile.gettempdir()}{os.sep}"
        self._busy = threading.local()  # the recorder's own work is not recorded
        self._thread = threading.get_ident()
        self._on = False
        self._lines = 0
        self._file = os.memfd_create("reads", os.MFD_CLOEXEC)
        self._handlers: dict[str, Callable[[tuple[Any, ...], FrameType], None]] = {
            "open": self._on_open,
            "os.listdir": self._on_listing,
            "os.scandir": self._on_listing,
            "import": lambda args, frame: self._on_import(args[0], frame),
            "ctypes.dlopen": lambda args, frame: self._on_path(FILE, args[0], frame),
            "sqlite3.connect": self._on_database,
        }
        for event, position in _MADE.items():
            self._handlers[event] = partial(self._on_made, position)
        # by the clock that stamps files
        self._started_ns = os.fstat(self._file).st_ctime_ns

    def start(self) -> None:
        """Start to record. An audit hook cannot be removed again."""
        self._replace_functions()
        for mapping in (os.environ, os.environb):
            mapping.__class__ = _recording_class(type(mapping), self._on_variable)
        self._on = True
        sys.addaudithook(self._audit)

    def stop(self) -> list[Read]:
        """Stop recording and return all reads, including forked processes'."""
        self._add_mapped_files()
        self._on = False
        os.lseek(self._file, 0, os.SEEK_SET)
        with open(self._file, "rb", closefd=False) as stream:
            lines = stream.read().splitlines()
        reads: dict[tuple[str, str], Read] = {}
        written: set[str] = set()
        for line in lines:
            with suppress(ValueError, TypeError):  # cut off by the end of a forked process
                kind, name, where, before = json.loads(line)
                if kind == _WRITTEN:
                    written |= {name, os.path.dirname(name)}  # noqa: PTH120
                elif not getattr(reads.get((kind, name)), "where", ""):
                    reads[kind, name] = Read(kind, name, where, before)
        return [
            read._replace(written=read.name in written)
            for read in reads.values()
            if not self._is_temporary(read)
        ]

    def _is_temporary(self, read: Read) -> bool:
        """Recognize files and folders that the stage made and removed.

        A library in C makes files without an event, but not before the stage started.
        """
        if read.kind not in (FILE, LISTING) or os.path.lexists(read.name):
            return False
        if read.name.startswith(self._temporary) and not read.name.startswith(self._roots):
            return True
        if read.kind == LISTING:
            return read.before is not None
        return isinstance(read.before, list) and read.before[1] >= self._started_ns

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        handler = self._handlers.get(event)
        if handler is not None and self._on and not getattr(self._busy, "yes", False):
            handler(args, sys._getframe(1))

    def _on_open(self, args: tuple[Any, ...], frame: FrameType) -> None:
        path, mode, flags = args
        if isinstance(mode, str):
            product = "w" in mode or "x" in mode
            reads, writes = "r" in mode, product or "a" in mode or "+" in mode
        else:
            access = flags & os.O_ACCMODE
            product = bool(flags & os.O_TRUNC or (flags & os.O_CREAT and flags & os.O_EXCL))
            reads, writes = not product and access != os.O_WRONLY, access != os.O_RDONLY
        if reads:
            self._on_path(FILE, path, frame)
        if writes:
            self._on_path(_WRITTEN, path, frame, product=product)

    def _on_listing(self, args: tuple[Any, ...], frame: FrameType) -> None:
        if not frame.f_code.co_filename.startswith(_MODULE_PATH_CODE):
            self._on_path(LISTING, args[0] or ".", frame)

    def _on_database(self, args: tuple[Any, ...], frame: FrameType) -> None:
        name = os.fsdecode(args[0])
        if name.startswith("file:"):
            name = unquote(urlsplit(name).path)
        if name not in ("", ":memory:"):
            self._on_path(FILE, name, frame)
            self._on_path(_WRITTEN, name, frame)  # SQLite may write, without another event

    def _on_made(self, position: int, args: tuple[Any, ...], frame: FrameType) -> None:
        if args[-1] == -1:  # otherwise relative to an open folder
            self._on_path(_WRITTEN, args[position], frame, product=True)

    def _on_path(self, kind: str, path: object, frame: FrameType, *, product: bool = False) -> None:
        if path is None or isinstance(path, int):
            return
        self._busy.yes = True
        try:
            # a path is a str, bytes or os.PathLike, whose code may be the user's
            name = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type] # noqa: PTH100
            if kind is FILE and name.endswith(".pyc"):
                with suppress(ValueError):  # without a source
                    name = source_from_cache(name)
            self._record(kind, name, frame, product=product)
        except (TypeError, ValueError, OSError, RecursionError):
            pass  # whatever cannot be a path fails in the stage itself
        finally:
            self._busy.yes = False

    def _record(self, kind: str, name: str, frame: FrameType, *, product: bool = False) -> None:
        key = (kind, name)
        if key in self._seen or name.startswith(self._ignored):
            return
        inside = name.startswith(self._roots)
        is_system = name.startswith(_SYSTEM) and not name.startswith(_MEMORY)
        if not inside and (is_system or name.startswith(self._installed)):
            return
        if name in self._products or in_library(name) or any(part in name for part in GENERATED):
            return
        caller = self._callers.find(frame)
        if not caller.direct and any(part in name for part in _METADATA):
            return  # a library looks for others, also for editable installations
        in_thread = not caller.ours and threading.get_ident() != self._thread
        if not caller.line and not (inside and in_thread):
            if kind != _WRITTEN:
                return
            product = False  # user code that reads it later depends on the library
        self._seen.add(key)
        if product:
            self._products.add(name)
        before: Stamp | str | None = None
        if kind in (FILE, LISTING):
            before = stamp(name) if kind is FILE else listing_digest(name)
        self._write(kind, name, caller.line, before)

    def _on_variable(self, name: str, frame: FrameType) -> None:
        key = (VARIABLE, name)
        if not self._on or key in self._seen:
            return
        reader: FrameType | None = frame
        while reader is not None and reader.f_code.co_filename in _ENVIRONMENT_CODE:
            reader = reader.f_back
        caller = self._callers.find(reader)
        if reader is None or not caller.line:
            return
        for_library = reader.f_code.co_filename.startswith((*STANDARD, "<frozen"))
        if (for_library or not caller.direct) and _STANDARD_VARIABLES.fullmatch(name):
            return
        if caller.direct:
            self._seen.add(key)
            self._write(VARIABLE, name, caller.line, None)
        elif name == ALL_VARIABLES:
            self._copying.add(reader.f_code)
        elif reader.f_code not in self._copying and ("", name) not in self._seen:
            self._seen.add(("", name))
            self._write(VARIABLE, name, "", None)

    def _on_import(self, name: object, frame: FrameType) -> None:
        if not self._on or not isinstance(name, str) or name[:1] == ".":
            return
        key = (MODULE, top := name.partition(".")[0])
        if key in self._seen or top in sys.stdlib_module_names or top == "buildsys":
            return
        caller = self._callers.find(frame)
        if caller.line and caller.direct:
            self._seen.add(key)
            self._write(MODULE, top, caller.line, None)

    def _write(self, kind: str, name: str, where: str, before: object) -> None:
        if kind != _WRITTEN:
            self._lines += 1
        if self._lines <= MAX_READS + 1:  # one too many is enough
            os.write(self._file, json.dumps((kind, name, where, before)).encode() + b"\n")

    def _replace_functions(self) -> None:
        """See functions without an audit event: ``os.stat`` and imports of loaded modules.

        Whoever asks for a file's existence depends on it, and libraries that open files in C or
        Rust look at them first.
        """
        real_stat, real_import = os.stat, importlib.import_module

        def stat(path: Any, *args: Any, **options: Any) -> os.stat_result:
            frame = sys._getframe(1)
            if not self._on or getattr(self._busy, "yes", False) or options.get("dir_fd"):
                return real_stat(path, *args, **options)
            try:
                status = real_stat(path, *args, **options)
            except OSError:
                self._on_path(FILE, path, frame)
                raise
            if not S_ISDIR(status.st_mode):  # only a folder's existence counts; listings are seen
                self._on_path(FILE, path, frame)
            return status

        def import_module(name: str, package: str | None = None) -> Any:
            self._on_import(name, sys._getframe(1))
            return real_import(name, package)

        os.stat = stat
        accessor = getattr(pathlib, "_NormalAccessor", None)
        if accessor is not None:  # a separate reference in Python 3.10
            accessor.stat = staticmethod(stat)
        importlib.import_module = import_module

    def _add_mapped_files(self) -> None:
        """Add files still mapped, such as weights opened by a native library."""
        with suppress(OSError, ValueError):
            with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as stream:
                names = {f"/{line.rstrip().partition('/')[2]}" for line in stream}
            for name in sorted(names):
                is_recorded = (FILE, name) in self._seen or name in self._products
                if (
                    is_recorded
                    or not name.startswith(self._roots)
                    or name.startswith(self._ignored)
                ):
                    continue
                before = stamp(name)
                if before is not None and not in_library(name):
                    self._write(FILE, name, "", before)


def _recording_class(base: type, on_variable: Callable[[str, FrameType], None]) -> type:
    """Make a subclass of the class of ``os.environ`` that reports reads."""

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


class Caller(NamedTuple):
    """The place of a call in user code."""

    line: str = ""  # file:line of the innermost user code
    direct: bool = True  # only the standard library is in between
    ours: bool = False  # buildsys is on the stack up to there


class Callers:
    """Finds user code on the stack."""

    def __init__(self, project: Path, neutral: str) -> None:
        """Prepare. ``neutral`` is the file with the functions that others call."""
        self._project = project
        self._kinds = {neutral: NEUTRAL}  # file -> kind of its code

    def find(self, frame: FrameType | None) -> Caller:
        """Find the innermost line of user code, from a frame outwards."""
        direct, ours = True, False
        while frame is not None:
            file = frame.f_code.co_filename
            kind = self._kinds.get(file)
            if kind is None:
                kind = self._kinds[file] = code_kind(file)
            if kind is USER:
                name = display_name(file, self._project)
                return Caller(f"{name}:{frame.f_lineno}", direct, ours)
            if kind is not NEUTRAL:
                direct = False
            ours = ours or kind is OURS
            frame = frame.f_back
        return Caller("", direct, ours)
