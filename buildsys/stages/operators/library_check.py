"""Check of operator libraries by ELF header and test load."""

from __future__ import annotations

import platform
import re
import struct
import sys
from pathlib import Path

from buildsys.errors import StageError
from buildsys.system.processes import describe_exit, run_python

_MACHINES = {
    3: "i686", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64",
    243: "riscv64", 258: "loongarch64",
}  # fmt: skip
_SHARED_OBJECT = 3
_LOAD_TIMEOUT_S = 120
_MISSING_SYMBOL = 3
# RTLD_NOW finds undefined symbols; os._exit skips the library's destructors
_LOAD = f"""
import ctypes, os, sys
path, symbol = sys.argv[1:]
try:
    library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
except OSError as error:
    sys.exit(str(error))
os._exit(0 if hasattr(library, symbol) else {_MISSING_SYMBOL})
"""


def check_library(path: Path, shown: str, symbol: str) -> None:
    """Check a library's machine; given a symbol, also load it.

    Raises: StageError: one of these does not hold.
    """
    content = path.read_bytes()
    if content[:4] != b"\x7fELF" or len(content) < 64:
        raise StageError(f"{shown} is not a shared library for Linux (ELF)", _file_kind(content))
    kind, number = struct.unpack_from("<HH" if content[5] == 1 else ">HH", content, 16)
    machine = _MACHINES.get(number, f"ELF machine {number}")
    here = platform.machine()
    is_64_bit = content[4] == 2
    if machine != here or not is_64_bit:
        raise StageError(
            f"{shown} is built for {machine}, and this machine is {here}", f"build it for {here}"
        )
    if kind != _SHARED_OBJECT:
        raise StageError(
            f"{shown} is an object file or a program, not a shared library", "link it with -shared"
        )
    if symbol:
        _check_loads(
            path,
            shown,
            symbol,
            is_mangled=re.search(rf"_Z\w*{symbol}".encode(), content) is not None,
        )


def _check_loads(path: Path, shown: str, symbol: str, *, is_mangled: bool) -> None:
    """Load the library in a child process, safe from crashes."""
    arguments = ["-c", _LOAD, str(path.absolute()), symbol]
    done = run_python(arguments, limit_s=_LOAD_TIMEOUT_S)
    if done.code is None:
        raise StageError(
            f"{shown} does not finish loading within {_LOAD_TIMEOUT_S} s",
            "check its initialization code",
        )
    sys.stderr.write(done.stderr)  # to the target's log
    if done.code == _MISSING_SYMBOL:
        raise StageError(
            f"{shown} exports no {symbol}, which ONNX Runtime calls to register operators",
            f'declare it extern "C" {symbol}' if is_mangled else f"define {symbol}",
        )
    if done.code < 0:
        raise StageError(
            f"{shown} cannot be loaded: the process {describe_exit(done.code)}",
            "check its initialization code",
        )
    if done.code:
        raise StageError(
            f"{shown} cannot be loaded: {done.problem.replace(f'{path.absolute()}: ', '')}",
            "link it with the libraries that it needs",
        )


def _file_kind(content: bytes) -> str:
    if content[:2] == b"MZ":
        return "it is a Windows DLL"
    if content[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        return "it is a macOS library"
    return "name C or C++ files as library: {sources: […]}" if content[:1] in (b"/", b"#") else ""
