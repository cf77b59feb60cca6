"""The program ``dot`` of graphviz, which places and draws graphs."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from buildsys.errors import StageError, Unavailable
from buildsys.system.programs import find_program, program_environment

_TIMEOUT_S = 60


def require_dot() -> str:
    """Find the program.

    Raises: Unavailable: graphviz is not installed.
    """
    program = find_program("dot", None, program_environment(None, os.environ, Path()))
    if program is None:
        hint = "`apt-get install graphviz` or `brew install graphviz` installs it"
        raise Unavailable("graphviz is not installed, whose program dot draws graphs", hint)
    return program


def render_svg(dot: str) -> str:
    """Draw a graph as SVG.

    Raises: Unavailable: graphviz is not installed. StageError: it cannot draw this graph.
    """
    program, hint = require_dot(), "draw a part of it"
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                [program, "-Tsvg"],
                input=dot.encode(),
                capture_output=True,
                timeout=_TIMEOUT_S,
                env=program_environment(None, os.environ, Path(folder)),
                cwd=folder,
                check=False,
            )
        except subprocess.TimeoutExpired:
            problem = f"graphviz did not draw the graph within {_TIMEOUT_S} s"
            raise StageError(problem, hint) from None
    if done.returncode or not done.stdout:
        message = " ".join(done.stderr.decode(errors="replace").split())
        raise StageError(f"graphviz cannot draw the graph: {message[:200]}", hint)
    return done.stdout.decode(errors="replace")
