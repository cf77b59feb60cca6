"""Ask the process that may load onnx about graphs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from buildsys.cli.inspect.graph_names import GraphFile
from buildsys.cli.repro.two_builds import child_environment
from buildsys.errors import StageError, UsageError


def ask(question: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``buildsys.onnx_graphs.inspection`` answers.

    Raises: StageError: a file cannot be read. UsageError: the request names what is not in the graph.
    """
    done = subprocess.run(
        [sys.executable, "-m", "buildsys.onnx_graphs.inspection"],
        input=json.dumps({"question": question, **request}),
        env=child_environment(),
        cwd=tempfile.gettempdir(),  # a project may hold an onnx.py of its own
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        told = done.stderr.strip().rpartition("\n")[2] or f"it ended with {done.returncode}"
        raise StageError(f"the graph cannot be read: {told}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if "error" in answer:
        kind = UsageError if answer.get("usage") else StageError
        raise kind(answer["error"], answer["hint"])
    return answer


def graph_request(graph: GraphFile) -> dict[str, str]:
    """Return where a graph lies, as requests have it."""
    return {
        "file": str(graph.file.resolve()),
        "data": str(graph.data.resolve()) if graph.data else "",
    }
