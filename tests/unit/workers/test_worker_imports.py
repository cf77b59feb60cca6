from __future__ import annotations

import subprocess
import sys

HEAVY = "{'torch', 'numpy', 'onnx', 'onnxruntime', 'tensorrt_rtx', 'pydantic', 'yaml', 'multiprocessing'}"


def _loaded_by(statement: str, suspects: str) -> str:
    program = f"import sys\n{statement}\nprint(sorted({suspects} & set(sys.modules)))"
    return subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_orchestrator_side_loads_nothing_heavy() -> None:
    assert (
        _loaded_by(
            "import buildsys.workers.client.pool, buildsys.workers.client.launch, buildsys.workers.client.status",
            HEAVY,
        )
        == "[]"
    )


def test_the_server_loads_nothing_heavy_before_it_is_told_to() -> None:
    assert _loaded_by("import buildsys.workers.server.main", HEAVY) == "[]"


def test_a_pool_that_runs_nothing_costs_no_server_code() -> None:
    server_code = "{'buildsys.workers.client.server_handle', 'buildsys.workers.registry', 'buildsys.workers.client.fingerprint', 'socket'}"
    assert _loaded_by("import buildsys.workers.client.pool", server_code) == "[]"
    assert _loaded_by("import buildsys.workers.client.launch", server_code).count("'") == 8
