"""The TensorRT of this interpreter or of BUILDSYS_TEST_TOOLCHAIN."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = os.environ.get("BUILDSYS_TEST_TOOLCHAIN", "")


def missing() -> str:
    """Return the reason for a missing TensorRT, "" if it is available."""
    if PYTHON or importlib.util.find_spec("tensorrt"):
        return ""
    return "tensorrt is not installed, and BUILDSYS_TEST_TOOLCHAIN names no interpreter that has it"


class Refused(Exception):
    """The refusal of a stage or backend, with its kind."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class Toolchain:
    """A process of an interpreter with TensorRT."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [PYTHON or sys.executable, str(HERE / "toolchain_server.py")]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.version = str(self.ask("version"))

    def ask(self, operation: str, **request: Any) -> Any:
        """Return the answer to an operation.

        Raises: Refused: an expected failure.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(
            json.dumps({"op": operation, **request}, default=_plain),
            file=self._process.stdin,
            flush=True,
        )
        line = self._process.stdout.readline()
        assert line, f"the interpreter ended with {self._process.wait()}"
        answer = json.loads(line)
        assert "crash" not in answer, answer["crash"]
        if "error" in answer:
            raise Refused(answer["kind"], answer["error"])
        return answer["value"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has crashed, as a test has reported
            self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, Path) else list(value)  # type: ignore[call-overload]
