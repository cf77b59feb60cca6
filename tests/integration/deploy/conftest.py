"""One engine of each backend, built once."""

from pathlib import Path

import pytest
from built_engines import build


@pytest.fixture(scope="session")
def ort_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ort"), "onnxruntime")


@pytest.fixture(scope="session")
def rtx_built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorrt_rtx")
    return build(tmp_path_factory.mktemp("rtx"), "tensorrt_rtx")
