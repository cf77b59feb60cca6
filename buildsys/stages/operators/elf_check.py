"""What a shared library is made for and what it exports, read from its ELF headers before anything loads it.

Source: the ELF specification (gABI), chapters 4 and 5; machine numbers from the supplements of the processors.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import NamedTuple

from buildsys.errors import StageError

_MACHINES = {
    3: "i686", 21: "ppc64le", 22: "s390x", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64",
    258: "loongarch64",
}  # fmt: skip
_SHARED_OBJECT = 3
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_UNDEFINED = 0  # SHN_UNDEF
_SECTION = "IIQQQQIIQQ"
_SYMBOL = "IBBHQQ"


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


def check_library(path: Path, shown: str, symbol: str) -> None:
    """Check that a library is for this machine, exports ``symbol`` (where one is given) and finds what it needs.

    Raises: StageError: it does not, with what it is instead.
    """
    content = path.read_bytes()
    if content[:4] != b"\x7fELF" or len(content) < 64:
        raise StageError(f"{shown} is not a shared library of Linux (ELF)", _how(content))
    order = "<" if content[5] == 1 else ">"
    kind, number = struct.unpack_from(f"{order}HH", content, 16)
    machine = _MACHINES.get(number, f"the processor with the ELF number {number}")
    here = platform.machine()
    if machine != here or content[4] != 2:
        raise StageError(
            f"{shown} is built for {machine}, and this machine is {here}", f"build it for {here}"
        )
    if kind != _SHARED_OBJECT:
        raise StageError(
            f"{shown} is an object or a program, not a shared library", "link it with -shared"
        )
    exported = _exported(content, order)
    if symbol and exported is not None and symbol not in exported:
        hint = f'declare it extern "C" {symbol}' if any(symbol in name for name in exported) else ""
        raise StageError(
            f"{shown} exports no {symbol}, which ONNX Runtime calls to register operators", hint
        )
    if symbol:
        _load(path, shown)


def _load(path: Path, shown: str) -> None:
    """Let the loader say what is missing: this process ends with its stage."""
    try:
        ctypes.CDLL(str(path.absolute()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    except OSError as error:
        message = str(error).replace(f"{path.absolute()}: ", "")
        raise StageError(
            f"{shown} cannot be loaded: {message}", "link it with the libraries that it needs"
        ) from error


def _how(content: bytes) -> str:
    if content[:2] == b"MZ":
        return "it is a DLL of Windows"
    if content[:4] in (b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe"):
        return "it is a library of macOS"
    return "name C or C++ files as library: {sources: […]}" if content[:1] in (b"/", b"#") else ""


def _exported(content: bytes, order: str) -> set[str] | None:
    """Return the names of the dynamic symbols that the library defines, None where it has no section headers."""
    try:
        sections = _sections(content, order)
        table = next((section for section in sections if section.kind == _DYNAMIC_SYMBOLS), None)
        return None if table is None else set(_names(content, order, table, sections[table.link]))
    except (struct.error, IndexError, ValueError):
        return None


def _sections(content: bytes, order: str) -> list[_Section]:
    start = struct.unpack_from(f"{order}Q", content, 40)[0]
    size, count = struct.unpack_from(f"{order}HH", content, 58)
    found = []
    for index in range(count if start else 0):
        fields = struct.unpack_from(order + _SECTION, content, start + index * size)
        found.append(_Section(kind=fields[1], offset=fields[4], size=fields[5], link=fields[6]))
    return found


def _names(content: bytes, order: str, table: _Section, strings: _Section) -> list[str]:
    names = []
    step = struct.calcsize(order + _SYMBOL)
    for offset in range(table.offset, table.offset + table.size, step):
        name, _, _, section, _, _ = struct.unpack_from(order + _SYMBOL, content, offset)
        if section != _UNDEFINED:
            begin = strings.offset + name
            names.append(content[begin : content.index(b"\0", begin)].decode(errors="replace"))
    return names
