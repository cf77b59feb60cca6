"""Programs of job systems, such as sbatch and kubectl."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from buildsys.errors import StageError, TemporaryError

_LIMIT_S = 60.0


def run_program(
    command: Sequence[str], hint: str, *, text: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with ``text`` as its input.

    Raises: StageError: it cannot be run; ``hint`` says how to install it. TemporaryError: it does
    not answer.
    """
    try:
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=env,
            timeout=_LIMIT_S,
            start_new_session=True,  # Ctrl-C is for us
        )
    except subprocess.TimeoutExpired:
        raise TemporaryError(f"{command[0]} has not answered within {_LIMIT_S:g} s") from None
    except OSError as error:
        raise StageError(f"cannot run {command[0]}: {error.strerror}", hint) from None
