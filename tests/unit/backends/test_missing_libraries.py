"""Backends whose library is missing."""

import sys
from pathlib import Path

import pytest

from buildsys.backends import interface
from buildsys.errors import Unavailable
from buildsys.system.toolchains import Toolchain

TOOLCHAIN = Toolchain("old", Path("/opt/old/bin/python"), {})
PIP = "/opt/old/bin/python -m pip install"


@pytest.mark.parametrize(
    ("toolchain", "text"),
    [
        (None, "the library tensorrt is not installed; pip install 'buildsys[tensorrt]'"),
        (TOOLCHAIN, "the library tensorrt is not installed in the toolchain old;"
                    f" {PIP} tensorrt cuda-bindings onnx"),
    ],
)  # fmt: skip
def test_a_missing_library_names_what_to_install_and_where(
    monkeypatch: pytest.MonkeyPatch, toolchain: Toolchain | None, text: str
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(Unavailable) as caught:
        interface.load_backend("tensorrt", toolchain)
    assert str(caught.value) == text
