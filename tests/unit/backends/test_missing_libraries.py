"""Backends whose library is missing, with and without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from buildsys.backends import interface
from buildsys.errors import Unavailable
from buildsys.system.toolchains import Toolchain

NO_GPU = "no NVIDIA driver is installed"
TOOLCHAIN = Toolchain("old", Path("/opt/old/bin/python"), {})
PIP = "/opt/old/bin/python -m pip install"


@pytest.mark.parametrize(
    ("backend", "toolchain", "gpus", "text"),
    [
        ("tensorrt", None, [{"gpu": "NVIDIA L4"}],
         "the library tensorrt is not installed; pip install 'buildsys[tensorrt]'"),
        ("tensorrt", None, [],
         f"the library tensorrt is not installed, and {NO_GPU};"
         " on a machine with an NVIDIA GPU: pip install 'buildsys[tensorrt]'"),
        ("tensorrt", TOOLCHAIN, [],
         f"the library tensorrt is not installed in the toolchain old, and {NO_GPU};"
         f" on a machine with an NVIDIA GPU: {PIP} tensorrt cuda-bindings onnx"),
        ("tensorrt_rtx", None, [],  # it builds engines here
         "the library tensorrt_rtx is not installed; pip install 'buildsys[rtx]'"),
    ],
)  # fmt: skip
def test_a_missing_library_names_what_to_install_and_where(
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    toolchain: Toolchain | None,
    gpus: list[dict[str, str]],
    text: str,
) -> None:
    monkeypatch.setitem(sys.modules, backend, None)
    monkeypatch.setattr(interface, "visible_gpus", lambda: gpus)
    monkeypatch.setattr(interface, "why_no_gpu", lambda: NO_GPU)
    with pytest.raises(Unavailable) as caught:
        interface.load_backend(backend, toolchain)
    assert str(caught.value) == text
