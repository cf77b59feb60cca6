"""Reading of ONNX files to build engines, also in toolchains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.errors import Unavailable

if TYPE_CHECKING:
    from onnx import ModelProto


def require_onnx() -> None:
    """Check that this interpreter has onnx, which only running an engine does not need.

    Raises: Unavailable: it has not.
    """
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        problem = "engines are built with onnx, which is not installed in this interpreter"
        raise Unavailable(problem, f"{sys.executable} -m pip install onnx") from error


def read_graph(file: Path) -> ModelProto:
    """Read an ONNX file without its external data.

    Raises: StageError: it is not ONNX. Unavailable: this interpreter has no onnx.
    """
    require_onnx()
    from buildsys.onnx_graphs.onnx_file import load_model

    return load_model(file, external_data=False)
