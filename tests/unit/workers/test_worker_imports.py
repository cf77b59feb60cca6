from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "{'torch', 'numpy', 'onnx', 'onnxruntime', 'tensorrt_rtx', 'pydantic', 'yaml',"
    " 'multiprocessing'}"
)


def _loaded_by(statement: str, suspects: str) -> str:
    program = f"import sys\n{statement}\nprint(sorted({suspects} & set(sys.modules)))"
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_orchestrator_side_loads_nothing_heavy() -> None:
    assert (
        _loaded_by(
            "from buildsys.workers import pool, launch, status",
            HEAVY,
        )
        == "[]"
    )


def test_the_server_loads_nothing_heavy_before_its_preload() -> None:
    assert _loaded_by("import buildsys.workers.server", HEAVY) == "[]"


def test_an_unused_pool_imports_no_server_code() -> None:
    workers = "buildsys.workers"
    server_code = (
        f"{{'{workers}.server_handle', '{workers}.registry', '{workers}.environment', 'socket'}}"
    )
    assert _loaded_by("import buildsys.workers.pool", server_code) == "[]"
    assert _loaded_by("import buildsys.workers.launch", server_code).count("'") == 8
