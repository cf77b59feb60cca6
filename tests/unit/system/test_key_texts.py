"""Printed versions in keys: whatever is not shown still counts."""

from pathlib import Path

import pytest
from texts import Texts

from buildsys.execution.stale_reasons import part_reasons
from buildsys.system import compilers
from buildsys.system.programs import probe

LONG = "".join(f"line {n}\n" for n in range(2000)).encode()


def program(folder: Path, printed: bytes, code: int = 0) -> Path:
    """A program that prints these bytes."""
    folder.mkdir()
    (folder / "printed").write_bytes(printed)
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\ncat {folder}/printed\nexit {code}\n")
    path.chmod(0o755)
    return path


def changed(printed: bytes, at: int) -> bytes:
    return printed[:at] + b"X" + printed[at + 1 :]


OTHERS = {
    "at the first hidden one": (LONG, changed(LONG, 2000), 0),
    "at the end": (LONG, changed(LONG, len(LONG) - 2), 0),
    "cut where the other ends": (LONG[:2000], LONG, 0),
    "of a failure": (LONG, changed(LONG, 5000), 3),
    "in bytes that are not UTF-8": (b"1.0 \xff", b"1.0 \xfe", 0),
}


@pytest.mark.parametrize("change", OTHERS)
def test_all_that_a_probe_prints_is_in_the_key(tmp_path: Path, change: str) -> None:
    first, second, code = OTHERS[change]
    texts = Texts()
    old, new, again = (
        probe([str(program(tmp_path / name, printed, code))], None, texts)
        for name, printed in (("a", first), ("b", second), ("c", first))
    )
    assert old != new
    assert old == again
    assert len(new) < 2100
    (reason,) = part_reasons({"tool:tool -v": old}, {"tool:tool -v": new})
    assert len(str(reason)) < 200


def test_all_lines_of_a_compiler_are_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for release in ("12.8", "12.9"):
        tool = program(tmp_path / release, f"nvcc: compiler driver\nV{release}\n".encode())
        tool.with_name("nvcc").symlink_to(tool)
        monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
        monkeypatch.setenv("CXX", "nvcc")
        compilers.compiler_identity.cache_clear()
        found.append(compilers.compiler_identity("c++"))
    compilers.compiler_identity.cache_clear()
    assert found[0] != found[1]
    assert all(text.startswith("nvcc: compiler driver… (all of it: ") for text in found)
