from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from buildsys.system.memory_limit import memory_limit


def test_memory_within_the_limit_is_allocated() -> None:
    with memory_limit(256 << 20):
        assert len(bytearray(64 << 20)) == 64 << 20


def test_memory_beyond_the_limit_fails_and_the_limit_ends() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError), memory_limit(64 << 20):
        bytearray(256 << 20)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytearray(256 << 20)) == 256 << 20


def test_a_lower_limit_of_the_user_remains() -> None:
    code = (
        "import resource\n"
        "from buildsys.system.memory_limit import memory_limit\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))\n"
        "with memory_limit(1 << 40):\n    print(resource.getrlimit(resource.RLIMIT_DATA))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"({512 << 20}, {512 << 20})\n"
