"""The interpreter with TensorRT, started once per module."""

from collections.abc import Iterator

import pytest
from toolchain import Toolchain


@pytest.fixture(scope="module")
def toolchain() -> Iterator[Toolchain]:
    started = Toolchain()
    yield started
    started.close()
