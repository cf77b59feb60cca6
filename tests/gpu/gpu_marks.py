"""Marks of tests that need a GPU."""

import pytest
from toolchain import missing

from buildsys.backends.cuda_gpus import find_driver

DRIVER = find_driver()
_NO_GPU = pytest.mark.skipif(not DRIVER.gpus, reason=f"no GPU: {DRIVER.missing}")
_NO_TENSORRT = pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")
ON_GPU = [pytest.mark.gpu, _NO_GPU]
TENSORRT_ON_GPU = [pytest.mark.gpu, _NO_TENSORRT, _NO_GPU]
