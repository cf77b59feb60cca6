"""One engine of ONNX Runtime, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from built_engines import build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("runtime"), "onnxruntime")
