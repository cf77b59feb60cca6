"""``load_engine`` with TensorRT on a GPU, in an interpreter that has it.

The interpreter is BUILDSYS_TEST_TOOLCHAIN, else this one.
"""

import subprocess
import sys
from pathlib import Path

from gpu_marks import TENSORRT_ON_GPU
from toolchain import HERE, PYTHON

pytestmark = TENSORRT_ON_GPU


def test_an_engine_runs_like_bare_tensorrt(tmp_path: Path) -> None:
    command = [PYTHON or sys.executable, str(HERE / "run_engine.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
