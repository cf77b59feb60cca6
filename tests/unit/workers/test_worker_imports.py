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
            "from buildsys.workers import pool, launch, registry",
            HEAVY,
        )
        == "[]"
    )


def test_the_server_loads_nothing_heavy_before_its_preload() -> None:
    assert _loaded_by("import buildsys.workers.server", HEAVY) == "[]"


def test_an_unused_pool_imports_no_server_code() -> None:
    server_code = {f"buildsys.workers.{name}" for name in ("server", "registry", "launch")}
    assert _loaded_by("import buildsys.workers.pool", str(server_code)) == "[]"
