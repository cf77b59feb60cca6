"""Reading of ONNX files in interpreters that need onnx for nothing else, such as toolchains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from buildsys.errors import StageError

if TYPE_CHECKING:
    from onnx import ModelProto


def read_graph(file: Path) -> ModelProto:
    """Read an ONNX file without its external data.

    Raises: StageError: it is not ONNX, or this interpreter has no onnx.
    """
    try:
        from buildsys.onnx_graphs.onnx_file import load_model
    except ImportError as error:
        text = f"{file.name} cannot be read: onnx is not installed in this interpreter"
        raise StageError(text, f"{sys.executable} -m pip install onnx") from error
    return load_model(file, external_data=False)
