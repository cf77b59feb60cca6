"""The recipe of docs/external-builders.md, run as printed with the real onnxruntime-genai."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from example_pages import run_page
from project_folder import REPOSITORY
from ready_project import ReadyProject

PAGE = REPOSITORY / "docs/external-builders.md"
SCRIPTS = "plugins/commands"
TOOLCHAIN = "BUILDSYS_TOOLCHAIN_GENAI"  # an interpreter that has it, such as that of the page
PYTHON = os.environ.get(TOOLCHAIN) or sys.executable
NOT_RUN = {
    "python3 -m venv .venvs/genai": "the tests use an interpreter that has the packages",
    ".venvs/genai/bin/pip install onnxruntime-genai onnx-ir torch transformers": "downloads them",
}
NEEDED = "import onnx_ir, onnxruntime_genai, torch, transformers"


@pytest.fixture
def genai(ready_place: ReadyProject) -> Any:
    if subprocess.run([PYTHON, "-c", NEEDED], capture_output=True, check=False).returncode:
        packages = NEEDED.removeprefix("import ")
        pytest.skip(f"{PYTHON} cannot import {packages}; {TOOLCHAIN} may name another interpreter")
    with ready_place.cleared():
        ready_place.create()
        shutil.copytree(REPOSITORY / SCRIPTS, ready_place.root / SCRIPTS)
        ready_place.environment[TOOLCHAIN] = PYTHON
        yield ready_place


def test_the_recipe_builds_verifies_and_measures(genai: ReadyProject) -> None:
    assert run_page(genai, PAGE, NOT_RUN) >= 3
    folder = genai.root / "build/tiny_llama/command"

    def figures(command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((folder / command / "command.json").read_text())
        assert found["status"] == "passed"
        return dict(found["figures"])

    assert figures("tokens")["different tokens"]["value"] == 0
    assert figures("tokens")["compared tokens"]["value"] >= 100
    for name, unit in (("time to first token", "ms"), ("generation", "tokens/s")):
        measured = figures("speed")[name]
        low, high = measured["interval"]
        assert 0 < low <= measured["value"] <= high
        assert measured["unit"] == unit
    # a wrong model is found: the same graph with other weights
    genai.edit(Path("configs/models/tiny_llama.yaml").as_posix(), "-p fp32", "-p int4")
    failed = genai.doit("command:tiny_llama:tokens")
    assert failed.code == 1
    assert "more than its limit 0" in failed.out + failed.err
